"""nbgrader's autograde without a kernel: no cell of a submission ever runs with staff's rights.

The learner's code is read as text, written to files and graded on sandboxed ranks. The grader
writes the outputs of the grading cells: nothing in the notebook can change them.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode, v4
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Bool

from gradsync.course.catalogue import find_course
from gradsync.errors import GraderError, SandboxError
from gradsync.nbgrader.marking import FAILURES, Marking, by_exercise, scaled, store_of
from gradsync.nbgrader.rebuilding import Notebook, Released, rebuilt
from gradsync.nbgrader.source.assignment import exercise_of
from gradsync.nbgrader.submitted import cells_of
from gradsync.records import Report
from gradsync.reports import terminal
from gradsync.reports.notebook import cell as fragment
from gradsync.reports.text import printable
from gradsync.text import full_stop

Converted = tuple[NotebookNode, dict[str, Any]]
atexit.register(gc.freeze)  # otherwise garbage collection takes seconds for torch's objects
SEED_SECONDS = 60.0  # to wait for another program that draws the seed
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
            _write_outputs(nb, self._reports(nb, **_names(resources)))
        except FAILURES as problem:
            hint = f" Or set `{NO_SANDBOX}`." if isinstance(problem, SandboxError) else ""
            text = (
                f"{printable(student)}: {notebook} is not graded: {full_stop(str(problem))}{hint}"
            )
            raise GraderError(text) from problem
        return nb, resources

    def _reports(
        self, nb: NotebookNode, student: str, assignment: str, notebook: str
    ) -> dict[str, Report]:
        """Return a report on each exercise of a notebook."""
        here = Path.cwd()  # nbgrader converts in the root of the course
        store = store_of(here, assignment)
        with contextlib.nullcontext() if store.seed is not None else store.locked(SEED_SECONDS):
            seed = store.settle_seed()  # several programs may run, but one draws the seed
        marking = Marking(
            course=find_course(here),
            folder=store.folder,
            seed=seed,
            sandboxed=self.sandboxed,
            command=f"gradsync nbgrade . {assignment}",
        )
        reports: dict[str, Report] = {}
        cells = cells_of(nb.cells)
        for phase in phases_of([cell.source for cell in _graded(nb)]):
            report = marking.report(student, notebook, cells, phase)
            reports |= by_exercise(replace(report, submission=student))
        return reports


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


def _write_outputs(nb: NotebookNode, reports: Mapping[str, Report]) -> None:
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    for cell in _graded(nb):
        exercise = exercise_of(cell.source) or ""
        if exercise not in reports:
            raise GraderError(f"the suite has no test for {exercise}")
        report = reports[exercise]
        points = scaled(report, float(cell.metadata.nbgrader["points"]))
        shown = {"text/html": fragment.render(report), "text/plain": terminal.render(report)}
        cell.outputs = [
            v4.new_output("display_data", data=shown),
            v4.new_output("execute_result", data={"text/plain": repr(points)}),
        ]


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
