"""Rebuilding a submitted notebook restores everything that a learner may not change."""

import pytest
from learners import COURSE, SCRIPT, cell_named
from nbformat import v4

from gradsync.course.catalogue import Course
from gradsync.errors import GraderError
from gradsync.nbgrader.rebuilding import Released, rebuilt
from gradsync.nbgrader.submitted import cells_of, submission_of

ABOUT = {"cell_type": "code", "schema_version": 3, "task": False, "checksum": "x"}


def released_cell(name, source, grade=False, solution=False):
    about = {**ABOUT, "grade": grade, "solution": solution, "locked": not solution}
    return Released("code", source, {**about, "grade_id": name})


RELEASED = {
    "given": released_cell("given", "import os"),
    "train": released_cell("train", "def train(): ...", solution=True),
    "grade-train": released_cell("grade-train", "grade(train)", grade=True),
}


def notebook(**changes):
    """Return the released notebook's cells; `changes` has sources by name."""
    cells = []
    for name, known in RELEASED.items():
        cell = v4.new_code_cell(changes.get(name, known.source))
        cell.metadata["nbgrader"] = dict(known.about)
        cells.append(cell)
    return cells


def sources(cells, texts=()):
    return [cell.source for cell in rebuilt(cells, RELEASED, texts)[0].cells]


def test_an_untouched_notebook_is_unchanged():
    made, notes = rebuilt(notebook(), RELEASED, ())

    assert [cell.source for cell in made.cells] == [known.source for known in RELEASED.values()]
    assert notes == []


def test_an_answer_is_kept_and_a_locked_cell_is_restored():
    made, notes = rebuilt(notebook(train="1", given="2", **{"grade-train": "3"}), RELEASED, ())

    assert [cell.source for cell in made.cells] == ["import os", "1", "grade(train)"]
    assert len(notes) == 2


@pytest.mark.parametrize("about", ["text", {}, {"grade_id": 3}, {"grade_id": "other"}, None, []])
def test_a_grading_cell_with_broken_metadata_becomes_ordinary_and_the_released_one_is_added(about):
    cells = notebook()
    cells[2].metadata["nbgrader"] = about
    made, notes = rebuilt(cells, RELEASED, ())

    assert "nbgrader" not in made.cells[2].metadata
    assert made.cells[3].metadata["nbgrader"] == RELEASED["grade-train"].about
    assert notes == ["cell grade-train was deleted; it is added at the end"]


@pytest.mark.parametrize(
    "change", [{"grade": False}, {"solution": True}, {"points": 1e9}, {"schema_version": 99}]
)
def test_metadata_of_a_known_cell_is_restored(change):
    cells = notebook()
    cells[2].metadata["nbgrader"].update(change)
    made, _ = rebuilt(cells, RELEASED, ())

    assert cell_named(made, "grade-train").metadata["nbgrader"] == RELEASED["grade-train"].about


def test_if_two_cells_have_one_name_the_last_is_the_answer_and_both_are_kept():
    cells = [*notebook(train="first"), *notebook(train="second")]
    made, _ = rebuilt(cells, RELEASED, ())

    assert cell_named(made, "train").source == "second"
    assert "first" in [cell.source for cell in made.cells]


def test_ids_are_unique_and_reproducible():
    cells = [*notebook(), *notebook()]
    ids = [cell.id for cell in rebuilt(cells, RELEASED, ())[0].cells]

    assert len(set(ids)) == 6
    assert ids == [cell.id for cell in rebuilt(cells, RELEASED, ())[0].cells]


def test_markdown_of_the_course_is_kept_and_any_other_is_shown_as_text():
    own = v4.new_markdown_cell(f"{SCRIPT} ````")
    own.attachments = {"x": {"image/svg+xml": SCRIPT}}
    made, _ = rebuilt([v4.new_markdown_cell("# Phase 1"), own], {}, {"# Phase 1"})

    assert made.cells[0].source == "# Phase 1"
    assert made.cells[1].source == f"`````text\n{SCRIPT} ````\n`````"
    assert "attachments" not in made.cells[1]


def test_outputs_and_other_metadata_are_removed():
    cells = notebook()
    cells[1].outputs = [v4.new_output("stream", text="x")]
    cells[1].metadata["tags"] = [SCRIPT]
    made, _ = rebuilt(cells, RELEASED, ())

    assert made.cells[1].outputs == []
    assert set(made.cells[1].metadata) == {"nbgrader"}


def test_a_notebook_with_too_much_code_has_no_files():
    cells = cells_of([v4.new_code_cell("x = 1\n" * 150_000) for _ in range(3)])
    submission, files = submission_of("ada", cells, COURSE, "phase1")

    assert submission.files == {}
    assert "unreadable: The notebook has more than" in submission.notes[0]
    assert files == {}


def test_without_solutions_a_filled_in_template_is_refused(tmp_path):
    (tmp_path / "phase1").mkdir()
    (tmp_path / "phase1" / "exercises.toml").write_text(
        '[[exercise]]\nname = "train"\nfile = "t.py"\nguide = ""\ngoal = ""\nhints = []\n'
    )
    template = tmp_path / "phase1" / "t.py"
    template.write_text("def train():\n    return 1\n")

    with pytest.raises(GraderError, match=r"t\.py is no longer the template: .* answer to train"):
        submission_of("ada", [], Course(tmp_path), "phase1")

    template.write_text('def train():\n    raise NotImplementedError("phase1/train")\n')

    assert "phase1/t.py" in submission_of("ada", [], Course(tmp_path), "phase1")[0].files


@pytest.mark.slow
def test_a_cell_of_50_mb_is_ignored():
    huge = v4.new_code_cell("x = '" + "y" * 50_000_000 + "'")
    answer = v4.new_code_cell("def average_gradients(model):\n    return 'mine'")
    submission, _ = submission_of("ada", cells_of([huge, answer]), COURSE, "phase1")

    assert b"'mine'" in submission.files["phase1/template_trainer.py"]
    assert len(submission.files["phase1/template_trainer.py"]) < 2**20
