"""nbgrader's autograde without a kernel: no cell of a submission ever runs with staff's rights.

The learner's code is read as text, written to files and graded on sandboxed ranks. The grader
writes the outputs of the grading cells: nothing in the notebook can change them.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nbformat import NotebookNode, v4
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool

from gradsync.course.catalogue import find_course
from gradsync.errors import GraderError, SandboxError
from gradsync.nbgrader.grading_folder import GradingFolder
from gradsync.nbgrader.marking import FAILURES, Marking
from gradsync.nbgrader.marks import Mark, Marks
from gradsync.nbgrader.rebuilding import rebuilt
from gradsync.nbgrader.released import markdown_of, released
from gradsync.nbgrader.source.assignment import exercise_of
from gradsync.nbgrader.submitted import cells_of
from gradsync.reports.text import printable
from gradsync.text import full_stop

Converted = tuple[NotebookNode, dict[str, Any]]
atexit.register(gc.freeze)  # otherwise garbage collection takes seconds for torch's objects
NO_SANDBOX = "c.GradeSubmission.sandboxed = False"


class GradeSubmission(NbGraderPreprocessor):  # type: ignore[misc]
    """Replaces nbgrader's `Execute`: grades a notebook and writes outputs of grading cells."""

    sandboxed = Bool(
        True,
        help="Run submissions on sandboxed ranks. False: run them with your rights.",
    ).tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> Converted:
        """Grade a submitted notebook.

        Raises:
            GraderError: the notebook could not be graded. nbgrader continues with the next learner;
                this one gets no score.
        """
        student, notebook = (resources["nbgrader"][name] for name in ("student", "notebook"))
        try:
            marks = self._marks(nb, **_names(resources))
            _write_outputs(nb, marks)
        except FAILURES as problem:
            hint = f" Or set `{NO_SANDBOX}`." if isinstance(problem, SandboxError) else ""
            text = (
                f"{printable(student)}: {notebook} is not graded: {full_stop(str(problem))}{hint}"
            )
            raise GraderError(text) from problem
        return nb, resources

    def _marks(self, nb: NotebookNode, student: str, assignment: str, notebook: str) -> Marks:
        here = Path.cwd()  # nbgrader converts in the root of the course
        folder = GradingFolder.of(here, assignment)
        marking = Marking(
            course=find_course(here),
            folder=folder,
            seed=folder.seed(),
            sandboxed=self.sandboxed,
            command=f"gradsync nbgrade . {assignment}",
        )
        marks: dict[str, Mark] = {}
        cells = cells_of(nb.cells)
        for phase in phases_of([cell.source for cell in _graded(nb)]):
            marks |= marking.marks(student, notebook, cells, phase)
        return marks


class RebuildNotebook(NbGraderPreprocessor):  # type: ignore[misc]
    """Rebuilds a submitted notebook: the learner's code as text, everything else as released."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]) -> Converted:
        """Rebuild a notebook."""
        about = _names(resources)
        with Gradebook(resources["nbgrader"]["db_url"]) as gradebook:
            known = released(gradebook, about["notebook"], about["assignment"])
        directory = self.parent.parent.coursedir  # the exporter's converter has it
        step = directory.format_path(directory.source_directory, ".", about["assignment"])
        texts = markdown_of(Path(step) / f"{about['notebook']}.ipynb")
        nb, notes = rebuilt(nb.cells, known, texts)
        for note in notes:
            self.log.warning("%s", note)
        return nb, resources


def phases_of(sources: Iterable[str]) -> list[str]:
    """Return the phases of the exercises in grading cells.

    Raises:
        GraderError: a grading cell is not one of gradsync's, so it would get points unchecked.
    """
    phases = set()
    for source in sources:
        exercise = exercise_of(source)
        if exercise is None:
            raise GraderError(
                f"this grading cell does not call gradsync.notebook.grade: {source!r}. Only "
                "cells with this call can be graded, because cells are not run. Add the call, or "
                "remove the cell from the assignment"
            )
        phases.add(exercise.partition("/")[0])
    return sorted(phases)


def _names(resources: dict[str, Any]) -> dict[str, str]:
    return {name: resources["nbgrader"][name] for name in ("student", "assignment", "notebook")}


def _graded(nb: NotebookNode) -> list[NotebookNode]:
    """Return the cells from which nbgrader reads points."""
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and utils.is_grade(cell)]
    return [cell for cell in cells if not utils.is_solution(cell)]  # a person grades these


def _write_outputs(nb: NotebookNode, marks: Marks) -> None:
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    for cell in _graded(nb):
        exercise = exercise_of(cell.source) or ""
        if exercise not in marks:
            raise GraderError(f"the suite has no test for {exercise}")
        mark = marks[exercise]
        points = mark.scaled(float(cell.metadata.nbgrader["points"]))
        shown = {"text/html": mark.page, "text/plain": mark.text}
        cell.outputs = [
            v4.new_output("display_data", data=shown),
            v4.new_output("execute_result", data={"text/plain": repr(points)}),
        ]
