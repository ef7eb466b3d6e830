"""Grade submitted notebooks into a store, or reuse its reports if nothing has changed."""

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
from gradsync.grading.store import GradeStore, folder_name
from gradsync.nbgrader.rebuilding import Notebook, rebuilt
from gradsync.nbgrader.submitted import cells_of, submission_of
from gradsync.notebook.definitions.file import Cell
from gradsync.notebook.definitions.locations import relocate
from gradsync.ranks import LauncherError
from gradsync.ranks.host.launchers.choice import LauncherName
from gradsync.ranks.sandbox import sandbox
from gradsync.records import Origin, Report
from gradsync.reports.summary import exercises

HIDDEN = ".gradsync"  # beside nbgrader's gradebook
# Reasons why a submission is not graded that are not the learner's fault.
FAILURES = (CourseError, GraderError, LauncherError, SandboxError, OSError)


@dataclass(frozen=True, slots=True)
class Marking:
    """The settings for grading the notebooks of an assignment."""

    course: Course
    folder: Path  # of the store
    seed: int
    sandboxed: bool
    command: str  # repeats the grade, with the seed appended
    parallel: int | None = None  # tests at a time; None: as many as the machine can run
    fresh: bool = False  # reuse no reports

    def report(self, student: str, notebook: str, cells: Sequence[Cell], phase: str) -> Report:
        """Return the report on the exercises of a phase, given the cells of a notebook.

        Raises:
            CourseError: the course has no tests for the phase.
            GraderError: the grader itself failed.
            LauncherError: the ranks could not be started.
            SandboxError: a sandbox is required, but this machine has none.
        """
        name = f"{student}/{notebook}/{phase}"
        submission, files = submission_of(name, cells, self.course, phase)
        made = self.course_digest(phase)
        origins = (Origin(phase, submission_digest(submission), made, self.sandboxed),)
        store = GradeStore(self.folder)
        if not self.fresh and store.reusable(name, origins, self.seed):
            return store.report(folder_name(name))
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
        report = replace(relocate(report, files), command=self.command, origins=origins)
        store.save(report)
        return report

    def course_digest(self, phase: str) -> str:
        """Return the digest of everything that affects grades of a phase.

        Raises:
            CourseError: the course has no tests for the phase.
        """
        return course_digest(self.course, phase, self._audience(phase))

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
    """Grade a learner's notebooks into the store; return the problem, "" for none."""
    for notebook in task.notebooks:
        path = notebook.path
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # nbformat warns when it repairs ids
                submitted = nbformat.read(path, as_version=4).cells
            cells = cells_of(rebuilt(submitted, notebook.released, ())[0].cells)
            for phase in notebook.phases:
                task.marking.report(task.student, path.stem, cells, phase)
        except FAILURES as problem:
            return str(problem)
        except Exception as problem:  # noqa: BLE001 - a notebook may contain anything
            return f"{path.name} can't be read as a notebook ({type(problem).__name__}: {problem})"
    return ""


def store_of(course_folder: Path, assignment: str) -> GradeStore:
    """Return the store of an assignment. Learners must not be able to write to it."""
    return GradeStore(course_folder / HIDDEN / folder_name(assignment))


def by_exercise(report: Report) -> dict[str, Report]:
    """Return the report on each exercise alone, as its grading cell shows it."""
    return {
        each.id: replace(
            report,
            verdicts=each.verdicts,
            seconds=sum(verdict.seconds for verdict in each.verdicts),
        )
        for each in exercises(report)
    }


def scaled(report: Report, most: float) -> float:
    """Return the points of a report on a scale to `most`, the maximum of the grading cell."""
    if not report.max_score:
        return 0.0
    return min(report.score * (most / report.max_score), most)
