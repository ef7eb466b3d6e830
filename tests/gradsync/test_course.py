"""The course's templates, solutions, hints, points and guide are consistent."""

import ast
import re
from pathlib import Path

import pytest

from gradsync.bank import reference, untouched
from gradsync.course import Course, CourseError, find_course
from gradsync.grading import grade
from gradsync.templates import make_template, templates

COURSE = find_course(Path(__file__).parent)
TODO = re.compile(r"""raise NotImplementedError\(["'](phase\d/\w+)["']\)""")
PHASES = COURSE.graded_phases("hidden")


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


@pytest.mark.parametrize("phase", PHASES)
def test_every_exercise_names_a_heading_of_the_guide(phase):
    guide = (COURSE.root / phase / "GUIDELINES.md").read_text()
    headings = set(re.findall(r"^## (.+)$", guide, re.M))

    assert {exercise.guide for exercise in COURSE.exercises(phase)} <= headings


@pytest.mark.parametrize("phase", PHASES)
def test_every_picture_of_the_guide_exists(phase):
    folder = COURSE.root / phase
    shown = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (folder / "GUIDELINES.md").read_text())

    assert shown
    assert [picture for picture in shown if not (folder / picture).is_file()] == []


@pytest.mark.parametrize("audience", ["visible", "hidden"])
@pytest.mark.parametrize("phase", PHASES)
def test_the_solution_passes_every_test(audience, phase):
    report = grade(reference(COURSE), COURSE, phases=[phase], seed=11, audience=audience)

    assert [verdict for verdict in report.verdicts if verdict.status != "passed"] == []
    assert {v.exercise for v in report.verdicts} == {e.id for e in COURSE.exercises(phase)}
    assert audience == "visible" or report.max_score == pytest.approx(100)


@pytest.mark.parametrize("audience", ["visible", "hidden"])
@pytest.mark.parametrize("phase", PHASES)
def test_every_test_finds_the_template_unfinished(audience, phase):
    report = grade(untouched(COURSE), COURSE, phases=[phase], seed=11, audience=audience)

    assert [verdict for verdict in report.verdicts if verdict.status != "unfinished"] == []
    assert report.score == 0


def test_the_same_seed_draws_the_same_inputs():
    def messages(seed):
        exercise = "phase1/PaddedDistributedSampler"
        wrong = reference(COURSE).files | {"phase1/template_data_loader.py": STRIDED}
        submission = type(reference(COURSE))("strided", wrong)
        report = grade(submission, COURSE, phases=["phase1"], seed=seed, exercise=exercise)
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


def test_an_unknown_exercise_is_refused_with_a_list():
    with pytest.raises(CourseError, match="average_gradients"):
        COURSE.find("averge_gradients")


def test_a_folder_without_a_course_is_refused(tmp_path):
    with pytest.raises(CourseError, match="no hidden tests"):
        Course(tmp_path).suite("hidden", "phase1")
