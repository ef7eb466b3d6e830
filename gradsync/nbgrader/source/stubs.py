"""Replace the solutions in a released notebook with the stubs of the templates."""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from nbgrader import utils
from nbgrader.preprocessors import ClearSolutions

from gradsync.course.templates import make_template
from gradsync.nbgrader.source.assignment import exercise_of

Converted = tuple[NotebookNode, dict[str, Any]]


class TemplateStubs(ClearSolutions):  # type: ignore[misc]
    """Replaces solutions in cells of exercises in the same way as `gradsync templates`."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> Converted:
        """Replace the solutions of a notebook."""
        ids = [exercise_of(cell.source) for cell in nb.cells if utils.is_grade(cell)]
        found = (id.partition("/") for id in ids if id is not None)
        self._phases = {name: phase for phase, _, name in found}
        converted: Converted = super().preprocess(nb, resources)
        return converted

    def preprocess_cell(
        self, cell: NotebookNode, resources: dict[str, Any], index: int
    ) -> Converted:
        """Replace the solution of a cell; cells that are not exercises get nbgrader's stub."""
        phase = self._phases.get(cell.metadata.get("nbgrader", {}).get("grade_id"))
        if phase is not None and utils.is_solution(cell):
            cell.source = make_template(cell.source, phase).rstrip("\n")
            return cell, resources
        converted: Converted = super().preprocess_cell(cell, resources, index)
        return converted
