"""Notebooks of learners, and the same code as files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4

from gradsync.course import known_submissions
from gradsync.course.catalogue import Course

ROOT = Path(__file__).parents[3]
COURSE = Course(ROOT)
FORGED = "13.0"
SCRIPT = "<script>alert(1)</script>"
SPY = """
    from pathlib import Path as Anywhere

    seen = [path for path in {paths!r} if Anywhere(path).exists()]
    try:
        Anywhere({gradebook!r}).write_bytes(b"forged")
        seen.append("wrote")
    except OSError:
        pass
    if seen:
        raise RuntimeError(f"ESCAPED to {{seen}}")
"""

Patch = tuple[str, str]  # text that occurs once in the solution, and its replacement


@dataclass(frozen=True)
class Learner:
    """A learner who hands in the patched solution of a phase as a notebook."""

    patches: tuple[Patch, ...] = ()
    edit: Callable[[NotebookNode], None] | None = None  # changes the notebook further

    def notebook(self, source: NotebookNode) -> NotebookNode:
        """Return the notebook, made from the course's source notebook."""
        notebook = copy.deepcopy(source)
        for old, new in self.patches:
            [cell] = [cell for cell in notebook.cells if old in cell.source]
            cell.source = cell.source.replace(old, new)
        if self.edit is not None:
            self.edit(notebook)
        return notebook

    def files(self, phase: str) -> dict[str, str]:
        """Return the same code as files, with keys such as "phase1/template_trainer.py"."""
        files = {}
        for path, source in known_submissions.reference(COURSE).files.items():
            if path.startswith(phase):
                text = source.decode()
                for old, new in self.patches:
                    text = text.replace(old, new)
                files[path] = text
        return files


def known_mistake(name: str) -> Learner:
    """Return a learner who makes a mistake of the bank in phase 1."""
    [wrong] = [
        wrong
        for wrong in known_submissions.wrong_submissions(COURSE, "phase1")
        if wrong.name == name
    ]
    return Learner(wrong.patches)


def hostile(folder: Path) -> Learner:
    """Return a learner who searches for files of the course and forges points in every way."""
    paths = [folder / "source", folder / "gradebook.db", folder / "submitted", ROOT / "solutions"]
    spy = SPY.format(
        paths=[str(path) for path in (*paths, ROOT / "tests" / "hidden")],
        gradebook=str(folder / "gradebook.db"),
    )
    average = "    for param in model.parameters():\n        if not param.requires_grad:"
    broadcast = "    for tensor in [*model.parameters(), *model.buffers()]:\n        whole"
    return Learner(
        (
            (average, spy + average),
            (broadcast, f"    raise RuntimeError({SCRIPT!r})\n{broadcast}"),
        ),
        forge,
    )


def forge(notebook: NotebookNode) -> None:
    """Edit, copy, rename and delete grading cells, and write outputs, metadata and scripts."""
    forged = [
        v4.new_output("stream", name="stderr", text="an error"),
        v4.new_output("display_data", data={"text/html": SCRIPT}),
        v4.new_output("execute_result", data={"text/plain": FORGED}),
    ]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = copy.deepcopy(forged)
    cell_named(notebook, "grade-broadcast_model").source = FORGED
    about = cell_named(notebook, "grade-train").metadata["nbgrader"]
    about["points"], about["grade"] = 1000.0, False
    cell_named(notebook, "grade-evaluate").metadata["nbgrader"]["solution"] = True
    cell_named(notebook, "grade-train_step").metadata["nbgrader"]["schema_version"] = 99
    cell_named(notebook, "grade-read_rank_info").metadata["nbgrader"]["grade_id"] = "other"
    notebook.cells.remove(cell_named(notebook, "grade-train_epoch"))
    notebook.cells.append(copy.deepcopy(cell_named(notebook, "grade-setup_distributed")))
    cell_named(notebook, "load_checkpoint").metadata["nbgrader"] = "none"
    notebook.cells.insert(0, v4.new_markdown_cell(f"{SCRIPT} [x](javascript:alert(1))"))
    notebook.cells.insert(0, v4.new_markdown_cell("![x](attachment:nothing)"))
    notebook.cells.insert(0, v4.new_code_cell("raise SystemExit"))
    notebook.cells.insert(
        0, v4.new_code_cell("import gradsync.notebook\ngradsync.notebook.grade = lambda *_: 13.0")
    )
    notebook.metadata.title = SCRIPT
    notebook.metadata.kernelspec = {"name": "bash", "display_name": SCRIPT, "language": "bash"}


def cell_named(notebook: NotebookNode, name: str) -> NotebookNode:
    abouts = ((cell, cell.metadata.get("nbgrader")) for cell in notebook.cells)
    return next(
        cell for cell, about in abouts if isinstance(about, dict) and about["grade_id"] == name
    )


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def write(notebook: NotebookNode | str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = notebook if isinstance(notebook, str) else v4.writes(notebook)  # without validation
    path.write_text(text, encoding="utf-8")
