"""The released cells of an assignment's notebooks, from a gradebook and a course folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbgrader.api import Gradebook

from gradsync.nbgrader.rebuilding import Notebook, Released


def released(gradebook: Gradebook, notebook: str, assignment: str) -> Notebook:
    """Return the cells of a notebook as they were released, by name, in order."""
    known = gradebook.find_notebook(notebook, assignment)
    points = {cell.name: cell.max_score for cell in (*known.grade_cells, *known.task_cells)}
    graded = {cell.name for cell in known.grade_cells}
    solutions = {cell.name for cell in known.solution_cells}
    tasks = {cell.name for cell in known.task_cells}
    cells = {}
    for cell in known.source_cells:
        about: dict[str, Any] = {
            "grade": cell.name in graded,
            "solution": cell.name in solutions,
            "task": cell.name in tasks,
            "locked": cell.locked,
            "grade_id": cell.name,
            "checksum": cell.checksum,
            "cell_type": cell.cell_type,
            "schema_version": 3,
        }
        if cell.name in points:
            about["points"] = points[cell.name]
        cells[cell.name] = Released(cell.cell_type, cell.source, about)
    return cells


def markdown_of(path: Path) -> frozenset[str]:
    """Return the markdown cells of the course's source notebook, or none without the file."""
    if not path.is_file():
        return frozenset()
    cells = nbformat.read(path, as_version=4).cells
    return frozenset(cell.source for cell in cells if cell.cell_type == "markdown")
