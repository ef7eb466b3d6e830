"""The course's templates, solutions, hints, points and guide are consistent."""

import ast
import re
from pathlib import Path

import pytest
from quick_part import drawn

from gradsync.course.catalogue import Course, CourseError, find_course
from gradsync.course.guides import exercise_sizes, guides, with_sizes
from gradsync.course.known_submissions import reference, untouched
from gradsync.course.templates import make_template, templates
from gradsync.grading.grade import grade

COURSE = find_course(Path(__file__).parent)
TODO = re.compile(r"""raise NotImplementedError\(["'](phase\d/\w+)["']\)""")
PHASES = COURSE.graded_phases("hidden")
SUITES = [f"{audience}/{phase}" for audience in ("visible", "hidden") for phase in PHASES]


def test_the_committed_templates_are_up_to_date():
    stale = [path for path, text in templates(COURSE) if (COURSE.root / path).read_text() != text]

    assert stale == [], "run `make templates`"


@pytest.mark.parametrize("phase", PHASES)
def test_every_todo_is_an_exercise_with_hints(phase):
    exercises = {exercise.id: exercise for exercise in COURSE.exercises(phase)}
    todos = {
        todo
        for path, text in templates(COURSE)
        if path.startswith(phase)
        for todo in TODO.findall(text)
    }

    assert todos == set(exercises)
    assert all(exercise.hints for exercise in exercises.values())


@pytest.mark.parametrize("path", [path for path, _ in templates(COURSE)])
def test_a_template_contains_no_solution(path):
    text = (COURSE.root / path).read_text()
    stubs = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]
    given = {"main"}

    assert "SOLUTION" not in text
    assert all(TODO.search(ast.unparse(stub)) for stub in stubs if stub.name not in given)


@pytest.mark.parametrize("path", [path for path, _ in templates(COURSE)])
def test_a_template_imports_nothing_that_only_its_solution_needs(path):
    tree = ast.parse((COURSE.root / path).read_text())
    files = {Path(file).stem for file in COURSE.files(Path(path).parent.name)}
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {
        alias.asname or alias.name
        for node in imports
        if getattr(node, "module", None) not in {"__future__", *files}
        for alias in node.names
    }
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    needed_by_every_answer = {"torch", "dist", "DataLoader"}

    assert imported - used <= needed_by_every_answer


@pytest.mark.parametrize("phase", PHASES)
def test_every_exercise_names_a_heading_of_the_guide(phase):
    guide = (COURSE.root / phase / "GUIDELINES.md").read_text()
    headings = set(re.findall(r"^## (.+)$", guide, re.M))

    assert {exercise.guide for exercise in COURSE.exercises(phase)} <= headings


def test_the_committed_guides_have_the_line_counts_of_the_solutions():
    stale = [path for path, text in guides(COURSE) if (COURSE.root / path).read_text() != text]

    assert stale == [], "run `make templates`"


@pytest.mark.parametrize("phase", PHASES)
def test_every_exercise_has_a_line_count_in_the_guide(phase):
    guide = (COURSE.root / phase / "GUIDELINES.md").read_text()
    counted = re.findall(r"^\| \d+ \| `(\w+)` \| \d+(?: \+ \d+)? \|", guide, re.M)

    assert counted == [exercise.name for exercise in COURSE.exercises(phase)]


@pytest.mark.parametrize("phase", PHASES)
def test_a_guide_can_be_read_in_an_evening(phase):
    """A guide is a reference beside its lessons: 4,500 words in phase 1, 5,500 in the others."""
    words = (COURSE.root / phase / "GUIDELINES.md").read_text().split()

    assert len(words) <= (4500 if phase == PHASES[0] else 5500)


@pytest.mark.parametrize("suite", drawn({s: [s.partition("/")[0]] for s in SUITES}))
def test_the_solution_passes_every_test(suite):
    audience, phase = suite.split("/")
    report = grade(reference(COURSE), COURSE, phases=[phase], seed=11, audience=audience)

    assert [verdict for verdict in report.verdicts if verdict.status != "passed"] == []
    assert {v.exercise for v in report.verdicts} == {e.id for e in COURSE.exercises(phase)}
    assert audience == "visible" or report.max_score == pytest.approx(100)


@pytest.mark.parametrize("suite", drawn(dict.fromkeys(SUITES, ("a suite",))))
def test_every_test_finds_the_template_unfinished(suite):
    audience, phase = suite.split("/")
    report = grade(untouched(COURSE), COURSE, phases=[phase], seed=11, audience=audience)

    assert [verdict for verdict in report.verdicts if verdict.status != "unfinished"] == []
    assert report.score == 0


def test_the_same_seed_draws_the_same_inputs():
    def messages(seed):
        exercise = "phase1/PaddedDistributedSampler"
        wrong = reference(COURSE).files | {"phase1/template_data_loader.py": STRIDED}
        submission = type(reference(COURSE))("strided", wrong)
        report = grade(submission, COURSE, phases=["phase1"], seed=seed, exercises=[exercise])
        return [verdict.message for verdict in report.verdicts]

    assert messages(5) == messages(5)


STRIDED = b"""
from torch.utils.data import DistributedSampler

class PaddedDistributedSampler(DistributedSampler):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        super().__init__(dataset, num_replicas, rank, shuffle=shuffle, seed=seed)
"""


def test_unpaired_markers_are_refused():
    with pytest.raises(CourseError, match="Line 2"):
        make_template("def f():\n    ### END SOLUTION\n", "phase1")


def test_a_marked_part_that_defines_a_function_is_a_todo():
    solution = "def step():\n    ### BEGIN SOLUTION\n    def add(a, b):\n        return a + b\n"
    solution += "    return add\n    ### END SOLUTION\n"

    template = make_template(solution, "phase1")

    assert "about 3 lines" in template
    assert template.endswith('raise NotImplementedError("phase1/step")\n')


def test_a_marked_helper_beside_a_method_is_removed():
    solution = "class Step:\n    def take(self):\n        return 1\n\n    ### BEGIN SOLUTION\n"
    solution += "    def _help(self):\n        return 2\n    ### END SOLUTION\n"

    template = make_template(solution, "phase1")

    assert template == "class Step:\n    def take(self):\n        return 1\n"


def test_helper_lines_count_for_the_first_exercise_that_uses_them():
    marked = "### BEGIN SOLUTION\n{}\n### END SOLUTION\n"
    gap = "def {}():\n    ### BEGIN SOLUTION\n    return {}()\n    ### END SOLUTION\n"
    solution = (
        marked.format("import math\nimport os\n\ndef deep():\n    return 1")
        + gap.format("alone", "len")
        + gap.format("first", "shallow")
        + marked.format("def shallow():\n    return deep()\n\ndef unused():\n    return 2")
        + gap.format("second", "deep")
    )

    assert exercise_sizes(solution) == {"alone": "1", "first": "1 + 4", "second": "1"}


def test_only_the_rows_of_exercises_get_a_size():
    guide = "| 1 | `first` | 2 | x |\n| 2 | `first` | 9 + 9 | x |\n| rank | `first` | 3 |\n"

    filled = with_sizes(guide, {"first": "1 + 4"})

    assert filled == (
        "| 1 | `first` | 1 + 4 | x |\n| 2 | `first` | 1 + 4 | x |\n| rank | `first` | 3 |\n"
    )


def test_an_unknown_exercise_is_refused_with_a_list_of_exercises():
    with pytest.raises(CourseError, match="average_gradients"):
        COURSE.find("averge_gradients")


def test_a_folder_without_a_course_is_refused(tmp_path):
    with pytest.raises(CourseError, match="no hidden tests"):
        Course(tmp_path).suite("hidden", "phase1")
