"""Pure: the files that a submitted notebook comes to. None of its cells is ever run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from gradsync.course import Course
from gradsync.errors import GraderError
from gradsync.notebook.definitions.file import Cell, Module, NotebookError, module_of
from gradsync.submission import Submission
from gradsync.submission.contents import MAX_FILE
from gradsync.submission.sources import source_flaw
from gradsync.templates import make_template

Files = Mapping[str, Module]  # by "phase1/template_trainer.py"


def cells_of(cells: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """Return a notebook's code cells without its grading cells.

    Args:
        cells: of a rebuilt notebook.
    """
    found = []
    for number, cell in enumerate(cells, 1):
        about = cell["metadata"].get("nbgrader", {})
        if cell["cell_type"] == "code" and not about.get("grade"):
            name = about.get("grade_id") if about.get("solution") else None
            found.append(Cell(f"cell {name or f'number {number}'}", cell["source"]))
    return found


def submission_of(
    name: str, cells: Sequence[Cell], course: Course, phase: str
) -> tuple[Submission, Files]:
    """Return what the learner `name` would have handed in as files, and where its lines come from.

    Each file is the template with the notebook's definitions after it: what is missing in the
    notebook is a stub.

    Raises:
        GraderError: this course has no templates to begin with.
    """
    try:
        files = {
            f"{phase}/{file}": _file(cells, course, phase, file) for file in course.files(phase)
        }
    except NotebookError as problem:
        return Submission(name, {}, (f"unreadable: {problem}",)), {}
    sources = {path: module.text.encode() for path, module in files.items()}
    flaws = {path: _flaw(source) for path, source in sources.items()}
    notes = tuple(f"{path} {flaw}" for path, flaw in flaws.items() if flaw)
    kept = {path: source for path, source in sources.items() if not flaws[path]}
    return Submission(name, kept, notes), files


def _file(cells: Sequence[Cell], course: Course, phase: str, file: str) -> Module:
    text = _template(course, phase, file)
    stem = PurePosixPath(file).stem
    others = {PurePosixPath(other).stem for other in course.files(phase)} - {stem}
    imported = {
        node.module or ""
        for node in ast.parse(text).body
        if isinstance(node, ast.ImportFrom) and node.module in others
    }
    return module_of(
        [*cells, *(_import(course, phase, module) for module in sorted(imported))],
        _names(course, phase, stem),
        base=Module.of_text(f"{phase}/{file}", text),
        without=[stem, *(others - imported)],
    )


def _template(course: Course, phase: str, file: str) -> str:
    """Return a template as the solutions give it, else as it stands in the course."""
    solution = course.root / "solutions" / phase / file
    if solution.is_file():
        return make_template(solution.read_text(encoding="utf-8"), phase)
    text = (course.root / phase / file).read_text(encoding="utf-8")
    for name in _names(course, phase, PurePosixPath(file).stem):
        if f'NotImplementedError("{phase}/{name}")' not in text:
            raise GraderError(
                f"{phase}/{file} is no longer the template: {name} is written. Restore the file, "
                "so that no learner gets points for it"
            )
    return text


def _import(course: Course, phase: str, module: str) -> Cell:
    """Return a cell that imports the exercises of another file, to be their latest definition."""
    return Cell("", f"from {module} import {', '.join(_names(course, phase, module))}")


def _names(course: Course, phase: str, stem: str) -> list[str]:
    """Return the names of the exercises of a file."""
    exercises = course.exercises(phase)
    return [exercise.name for exercise in exercises if PurePosixPath(exercise.file).stem == stem]


def _flaw(source: bytes) -> str:
    if len(source) > MAX_FILE:
        return f"would have {len(source):,} bytes, {MAX_FILE:,} are allowed"
    return source_flaw(source)
