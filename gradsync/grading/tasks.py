"""The grading of one submission of a class, in this process or in another one."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gradsync.course.catalogue import Course, CourseError
from gradsync.course.release.contents import template_of
from gradsync.course.settings import read_settings
from gradsync.errors import GraderError
from gradsync.grading.fingerprint import submission_digest
from gradsync.grading.follow_on import with_follow_on
from gradsync.grading.grade import grade
from gradsync.grading.processes.pool import in_pool
from gradsync.grading.similar import code_print
from gradsync.ranks.host.launchers.choice import LauncherName
from gradsync.records import Origin, Report
from gradsync.submission import Submission


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that all grades of a run share."""

    course: Course
    phases: tuple[str, ...]
    seed: int
    course_made: tuple[str, ...]  # the digest of the course for each of the phases
    sandboxed: bool
    parallel: int | None = None  # tests of a submission at a time; None: as many as are useful

    def origins(self, submission: Submission) -> tuple[Origin, ...]:
        """Return the origin of each phase's grade: all that affects it, except the seed."""
        made = submission_digest(submission)
        pairs = zip(self.phases, self.course_made, strict=True)
        return tuple(Origin(phase, made, course, self.sandboxed) for phase, course in pairs)


@dataclass(frozen=True, slots=True)
class GradingTask:
    """A submission to grade."""

    submission: Submission
    command: str  # repeats the grade if a seed is appended
    conditions: Conditions


Perform = Callable[[Iterator[GradingTask]], Iterator[tuple[GradingTask, Report | None]]]
"""Does tasks, and yields each with its result, or with None if the process that did it died."""


def here(tasks: Iterator[GradingTask]) -> Iterator[tuple[GradingTask, Report | None]]:
    """Do one task after the other in this process."""
    return ((task, do(task)) for task in tasks)


def in_processes(jobs: int) -> Perform:
    """Return a function that does `jobs` tasks at a time, each in its own process."""
    return lambda tasks: in_pool(do, tasks, jobs)


def do(task: GradingTask) -> Report:
    """Grade a submission; an error of the grader is part of the result."""
    submission, conditions = task.submission, task.conditions
    launcher: LauncherName | None = "sandbox" if conditions.sandboxed else None
    try:

        def graded(files: Submission, phases: Sequence[str], exercises: Sequence[str]) -> Report:
            return grade(
                files,
                conditions.course,
                phases=phases,
                seed=conditions.seed,
                exercises=exercises,
                launcher=launcher,
                parallel=conditions.parallel,
            )

        report = graded(submission, conditions.phases, ())
        if read_settings(conditions.course.root).follow_on == "full":
            report = with_follow_on(
                report, submission, conditions.course, conditions.phases, graded
            )
        return replace(
            report,
            command=task.command,
            origins=conditions.origins(submission),
            prints=tuple(
                code_print(path, source, _template(conditions.course, path))
                for path, source in submission.files.items()
            ),
        )
    except Exception as problem:  # noqa: BLE001 - the other submissions must still be graded
        return failed(submission.name, problem)


@functools.lru_cache(maxsize=32)
def _template(course: Course, path: str) -> bytes:
    """Return a file's template, b"" where this copy of the course can't tell."""
    phase, _, file = path.partition("/")
    with suppress(CourseError):
        return template_of(course, phase, file).encode()
    return b""


def failed(name: str, problem: Exception) -> Report:
    """Return the report on a submission on which the grader failed."""
    report = Report(name, seed=0, seconds=0.0, verdicts=())
    if isinstance(problem, GraderError):
        return replace(report, problem=str(problem) or "the grader failed")
    text = f"{type(problem).__name__}: {problem}"
    lines = traceback.format_exception(problem)
    return replace(report, problem=text, traceback="".join(lines))
