"""Grade submitted notebooks, or reuse their marks if nothing has changed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat

from gradsync.course.catalogue import Audience, Course, CourseError
from gradsync.errors import GraderError, SandboxError
from gradsync.grading.fingerprint import course_digest, submission_digest
from gradsync.grading.grade import grade
from gradsync.nbgrader.grading_folder import GradingFolder
from gradsync.nbgrader.marks import Marks, marks_of
from gradsync.nbgrader.rebuilding import Notebook, rebuilt
from gradsync.nbgrader.submitted import cells_of, submission_of
from gradsync.notebook.definitions.file import Cell
from gradsync.notebook.definitions.locations import relocate
from gradsync.ranks import LauncherError
from gradsync.ranks.host.launchers.choice import LauncherName
from gradsync.ranks.sandbox import sandbox
from gradsync.records import Origin

# Reasons why a submission is not graded that are not the learner's fault.
FAILURES = (CourseError, GraderError, LauncherError, SandboxError, OSError)


@dataclass(frozen=True, slots=True)
class Marking:
    """The settings for grading the notebooks of an assignment."""

    course: Course
    folder: GradingFolder
    seed: int
    sandboxed: bool
    command: str  # repeats the grade, with the seed appended
    parallel: int | None = None  # tests at a time; None: as many as the machine can run
    fresh: bool = False  # reuse no marks

    def marks(self, student: str, notebook: str, cells: Sequence[Cell], phase: str) -> Marks:
        """Return the marks of the exercises of a phase, given the cells of a notebook.

        Raises:
            CourseError: the course has no tests for the phase.
            GraderError: the grader itself failed.
            LauncherError: the ranks could not be started.
            SandboxError: a sandbox is required, but this machine has none.
        """
        submission, files = submission_of(student, cells, self.course, phase)
        made_by = self.course_digest(phase)
        origin = Origin(submission_digest(submission), made_by, self.sandboxed)
        name = f"{notebook}.{phase}"
        known = None if self.fresh else self.folder.read(student, name, origin, self.seed)
        if known is not None:
            return known
        if self.sandboxed:
            sandbox.check(self.course.root)
        launcher: LauncherName | None = "sandbox" if self.sandboxed else None
        report = grade(
            submission,
            self.course,
            phases=[phase],
            seed=self.seed,
            audience=self._audience(phase),
            launcher=launcher,
            parallel=self.parallel,
        )
        report = replace(relocate(report, files), command=self.command, origin=origin)
        made = marks_of(report)
        self.folder.write(student, name, made, origin, self.seed)
        return made

    def course_digest(self, phase: str) -> str:
        """Return the digest of everything that affects grades of a phase.

        Raises:
            CourseError: the course has no tests for the phase.
        """
        return course_digest(self.course, [phase], self._audience(phase))

    def _audience(self, phase: str) -> Audience:
        return "hidden" if phase in self.course.graded_phases("hidden") else "visible"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A submitted notebook, and the notebook as it was released."""

    path: Path
    released: Notebook
    phases: tuple[str, ...]  # of the exercises in its grading cells


@dataclass(frozen=True, slots=True)
class MarkingTask:
    """A learner's notebooks that must be graded."""

    student: str
    marking: Marking
    notebooks: tuple[Submitted, ...]


def mark(task: MarkingTask) -> str:
    """Grade a learner's notebooks and keep the marks; return the problem, "" for none."""
    for notebook in task.notebooks:
        path = notebook.path
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # nbformat warns when it repairs ids
                submitted = nbformat.read(path, as_version=4).cells
            cells = cells_of(rebuilt(submitted, notebook.released, ())[0].cells)
            for phase in notebook.phases:
                task.marking.marks(task.student, path.stem, cells, phase)
        except FAILURES as problem:
            return str(problem)
        except Exception as problem:  # noqa: BLE001 - a notebook may contain anything
            return f"{path.name} can't be read as a notebook ({type(problem).__name__}: {problem})"
    return ""
