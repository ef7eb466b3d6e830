"""The course's notebooks agree with the solutions, templates and suites."""

import ast
import json
import shutil

import pytest
from learners import COURSE, ROOT, read

from gradsync.course.catalogue import Course, CourseError
from gradsync.course.templates import templates
from gradsync.grading.grade import grade
from gradsync.grading.suite.weights import points_of
from gradsync.nbgrader.source.assignment import assignments, exercise_of
from gradsync.nbgrader.source.guide import beginning
from gradsync.nbgrader.source.pieces import cut
from gradsync.nbgrader.submitted import cells_of, submission_of
from gradsync.notebook.definitions.file import Cell, module_of
from gradsync.notebook.definitions.locations import relocate

TEMPLATES = dict(templates(COURSE))


@pytest.fixture(scope="module")
def points():
    return {
        exercise: most
        for phase in COURSE.phases
        for exercise, most in points_of(COURSE, "hidden", phase).items()
    }


def source_path(phase):
    return ROOT / "notebooks" / "nbgrader" / "source" / phase / f"{phase}.ipynb"


def definitions(text):
    """Return the definitions in a file by name, without positions and comments."""
    nodes = ast.parse(text).body
    found = {getattr(node, "name", ""): ast.dump(node) for node in nodes}
    assigned = [node for node in nodes if isinstance(node, ast.Assign)]
    found |= {ast.unparse(node.targets[0]): ast.dump(node) for node in assigned}
    found.pop("")
    return found


def files_of(notebook, phase):
    submission, _ = submission_of("ada", cells_of(notebook.cells), COURSE, phase)
    return {path: source.decode() for path, source in submission.files.items()}


@pytest.mark.parametrize(
    ("exercise", "status"), [("cleanup_distributed", "passed"), ("average_gradients", "error")]
)
def test_a_syntax_error_in_a_cell_costs_only_its_own_exercise(exercise, status):
    solution = (ROOT / "solutions" / "phase1" / "template_trainer.py").read_text()
    other = solution.replace('if __name__ == "__main__":\n    main()\n', "")
    cells = [Cell("cell other", other), Cell("cell mine", "\ndef average_gradients(model) None:")]
    submission, files = submission_of("somebody", cells, COURSE, "phase1")

    report = grade(submission, COURSE, phases=["phase1"], seed=1, exercises=[f"phase1/{exercise}"])
    verdicts = relocate(report, files).verdicts

    assert {verdict.status for verdict in verdicts} == {status}
    if status == "error":
        assert all("SyntaxError at cell mine, line 2: expected ':'" in v.message for v in verdicts)


def test_the_committed_notebooks_are_generated_from_the_current_solutions(points):
    made = dict(assignments(COURSE, points))
    stale = [path for path, text in made.items() if (ROOT / path).read_text() != text]

    assert len(made) == len(COURSE.phases)
    assert stale == [], "These notebooks are outdated. Run `make templates`."


def test_the_points_of_a_phase_add_up_to_a_hundred(points):
    sums = [sum(points[e.id] for e in COURSE.exercises(phase)) for phase in COURSE.phases]

    assert sums == pytest.approx([100] * len(COURSE.phases))


@pytest.mark.parametrize("phase", COURSE.phases)
def test_a_source_notebook_converted_to_files_is_the_solution(phase):
    files = files_of(read(source_path(phase)), phase)

    for path, text in files.items():
        wanted = definitions((ROOT / "solutions" / path).read_text())
        found = definitions(text)  # may contain another file's helper too

        assert {name: found.get(name) for name in wanted} == wanted, path


@pytest.mark.parametrize("phase", COURSE.phases)
def test_a_source_notebook_has_every_definition_of_the_solution_except_main(phase):
    cells = cells_of(read(source_path(phase)).cells)
    for file in COURSE.files(phase):
        wanted = definitions((ROOT / "solutions" / phase / file).read_text())
        wanted.pop("main")
        found = definitions(module_of(cells, wanted).text)

        assert {name: found.get(name) for name in wanted} == wanted, file


@pytest.mark.slow
@pytest.mark.parametrize("phase", COURSE.phases)
def test_a_released_notebook_converted_to_files_is_the_template(released, phase):
    notebook = read(released.root / "release" / phase / f"{phase}.ipynb")

    for path, text in files_of(notebook, phase).items():
        assert definitions(text) == definitions(TEMPLATES[path]), path


@pytest.mark.parametrize("phase", COURSE.phases)
def test_a_released_notebook_has_exactly_the_stubs_of_the_templates(released, phase):
    notebook = read(released.root / "release" / phase / f"{phase}.ipynb")
    text = "\n\n".join(TEMPLATES[f"{phase}/{file}"] for file in COURSE.files(phase))
    solved = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("solution")]

    assert len(solved) == len(COURSE.exercises(phase))
    assert [cell.source for cell in solved if cell.source not in text] == []


@pytest.mark.parametrize("phase", COURSE.phases)
def test_a_released_notebook_has_no_line_of_a_solution_or_a_hidden_test(released, phase):
    notebook = read(released.root / "release" / phase / f"{phase}.ipynb")
    lines = {line for cell in notebook.cells for line in cell.source.splitlines()}
    shown = {
        line for file in COURSE.files(phase) for line in TEMPLATES[f"{phase}/{file}"].split("\n")
    }
    hidden = [
        *(ROOT / "solutions" / phase).glob("*.py"),
        *COURSE.suite("hidden", phase).glob("*.py"),
    ]
    secret = {line for path in hidden for line in path.read_text().split("\n")} - shown
    revealed = {line for line in secret & lines if not line.startswith(("import ", "from "))}

    assert len(secret) > 100
    assert revealed == set()


@pytest.mark.parametrize("phase", COURSE.phases)
def test_cell_ids_are_the_same_in_the_source_and_the_release(released, phase):
    made = read(source_path(phase))
    release = read(released.root / "release" / phase / f"{phase}.ipynb")
    ids = [cell.id for cell in made.cells]

    assert len(set(ids)) == len(ids)
    assert [cell.id for cell in release.cells] == ids


@pytest.mark.parametrize("phase", COURSE.phases)
def test_every_exercise_has_a_grading_cell_of_one_line(points, phase):
    cells = [
        cell
        for cell in read(source_path(phase)).cells
        if cell.metadata.get("nbgrader", {}).get("grade")
    ]
    worth = {exercise_of(c.source): c.metadata["nbgrader"]["points"] for c in cells}

    assert worth == {e.id: points[e.id] for e in COURSE.exercises(phase)}
    assert {cell.source.count("\n") for cell in cells} == {0}
    assert all(cell.metadata["nbgrader"]["locked"] for cell in cells)


@pytest.mark.parametrize(
    "source",
    [
        "13.0",
        'gradsync.notebook.grade("phase1/train", other)',
        'print(gradsync.notebook.grade("phase1/train", train))',
        'x = """\n"""',
        "def (",
    ],
)
def test_other_cells_are_not_grading_cells(source):
    assert exercise_of(source) is None


def test_two_files_that_define_a_name_differently_can_not_share_a_notebook(tmp_path):
    course = Course(tmp_path)
    for part in ("phase1", "solutions/phase1"):
        shutil.copytree(ROOT / part, tmp_path / part)
    loader = tmp_path / "solutions" / "phase1" / "template_data_loader.py"
    loader.write_text(f"{loader.read_text()}\n\nBatch = list\n")
    worth = {exercise.id: 1.0 for exercise in course.exercises("phase1")}

    with pytest.raises(CourseError, match="define Batch differently"):
        list(assignments(course, worth))


def test_a_helper_belongs_to_the_exercise_above_if_used_there_else_to_the_next():
    marked = "### BEGIN SOLUTION\n{}\n### END SOLUTION\n"
    source = (
        "import os\n\n\ndef first():\n    return helper()\n\n\n"
        + marked.format("def helper():\n    pass")
        + "\n\n"
        + marked.format("LATER = 1\n\n\n@os.register")
        + "def second():\n    return LATER\n\n\ndef main():\n    first()\n"
    )
    pieces = cut(source, ["first", "second"], [])

    assert pieces.given == "import os"
    assert "def helper" in pieces.answers["first"]
    assert pieces.answers["second"].startswith("### BEGIN SOLUTION\nLATER = 1")
    assert "main" not in json.dumps(dict(pieces.answers))


def test_a_guide_is_quoted_up_to_its_first_subsection_without_pictures_and_local_links():
    guide = (
        "## A\n\nSee [b](#b) and [c](https://c.org).\n\n![p](p.svg)\n\n```\n# no\n```\n\n### B\nx"
    )

    assert beginning(guide, "A") == "See b and [c](https://c.org).\n\n```\n# no\n```"
    with pytest.raises(CourseError, match="no section 'Z'"):
        beginning(guide, "Z")
