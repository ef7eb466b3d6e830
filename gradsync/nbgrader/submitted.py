"""Convert a submitted notebook to the files of a submission. No cell is ever run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from gradsync.course.catalogue import Course
from gradsync.course.templates import make_template
from gradsync.errors import GraderError
from gradsync.notebook.definitions.file import Cell, Module, NotebookError, module_of
from gradsync.submission import Submission
from gradsync.submission.contents import MAX_FILE
from gradsync.submission.sources import source_flaw

Files = Mapping[str, Module]  # by "phase1/template_trainer.py"


def cells_of(cells: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """Return a notebook's code cells without its grading cells.

    Args:
        cells: all cells of a rebuilt notebook.
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
    """Return the submission of the learner `name` as files, and the origin of their lines.

    Each file is the template followed by the notebook's definitions: an exercise that is missing in
    the notebook remains a stub.

    Raises:
        GraderError: a template in this course has already been filled in.
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
    # Cells that import the exercises of other files, so that these definitions count.
    imports = [
        Cell("", f"from {module} import {', '.join(_names(course, phase, module))}")
        for module in sorted(imported)
    ]
    return module_of(
        [*cells, *imports],
        _names(course, phase, stem),
        base=Module.of_text(f"{phase}/{file}", text),
        without=[stem, *(others - imported)],
    )


def _template(course: Course, phase: str, file: str) -> str:
    """Return the template made from the solution if there is one, else the file in the course."""
    solution = course.root / "solutions" / phase / file
    if solution.is_file():
        return make_template(solution.read_text(encoding="utf-8"), phase)
    text = (course.root / phase / file).read_text(encoding="utf-8")
    for name in _names(course, phase, PurePosixPath(file).stem):
        if f'NotImplementedError("{phase}/{name}")' not in text:
            raise GraderError(
                f"{phase}/{file} is no longer the template: it contains an answer to {name}, so "
                "every learner would get points for it. Restore the file"
            )
    return text


def _names(course: Course, phase: str, stem: str) -> list[str]:
    """Return the names of the exercises in a file."""
    exercises = course.exercises(phase)
    return [exercise.name for exercise in exercises if PurePosixPath(exercise.file).stem == stem]


def _flaw(source: bytes) -> str:
    if len(source) > MAX_FILE:
        return f"would have {len(source):,} bytes; at most {MAX_FILE:,} are allowed"
    return source_flaw(source)
