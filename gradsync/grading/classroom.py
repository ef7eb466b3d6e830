"""Grade many submissions into one folder; a run that was stopped can be continued.

Each submission's report is written when it is graded, and its line in the gradebook right after. A
later run keeps each complete report that was made from the same submission, course and seed. It
also keeps the lines of submissions that it does not name, and with them the seed of the folder.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock, Timeout

from gradsync.course.catalogue import Course
from gradsync.course.guide_texts import guide_texts
from gradsync.errors import UnusableInput
from gradsync.grading.fingerprint import course_digest, submission_digest
from gradsync.grading.grade import draw_seed, grade
from gradsync.grading.output_files import (
    PAGE,
    STATE,
    folder_name,
    kept_seed,
    lines_of_others,
    read_grade,
    remove_leftovers,
    update_gradebook,
    write_report,
    write_whole,
)
from gradsync.ranks.host.launcher_choice import LauncherName
from gradsync.records import Grade, Origin, Report
from gradsync.reports import gradebook, summary
from gradsync.submission import (
    Submission,
    SubmissionError,
    find_submissions,
    read_submission,
    submission_name,
)

LOCK = ".grading.lock"


class FolderInUse(UnusableInput):
    """Another grader is writing to the folder."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A submission to grade, and the command that repeats the grade if a seed is appended."""

    submission: Submission
    command: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for a submission: graded now, kept, or without a grade as the grader failed."""

    grade: Grade
    page: Path  # its report.html
    report: Report | None = None  # if it was graded now
    problem: Exception | None = None  # if the grader failed


def grade_class(
    entries: Sequence[Entry],
    course: Course,
    phases: Sequence[str],
    out: Path,
    *,
    seed: int | None = None,
    fresh: bool = False,
    sandboxed: bool = True,
) -> Iterator[Outcome]:
    """Grade the submissions one after the other into `out`, yielding each as it is done.

    Names must be unique. If the grader fails on one submission, only that one gets no points; the
    next run tries it again.

    Args:
        entries: the submissions, in the order of grading.
        course: the course with the hidden suites.
        phases: names of phases, such as "phase1".
        out: the folder of the reports and the gradebook.
        seed: the seed of the tests' random inputs; None takes the folder's seed.
        fresh: grade unchanged submissions again, too.
        sandboxed: run the ranks in a sandbox; `ranks.sandbox.check` tells whether that works.

    Raises:
        FolderInUse: another grader is writing to `out`.
        NoGradebook: the gradebook.csv in `out` can't be read.
        CourseError: a phase has no hidden suite.
        OSError: `out` can't be written to.
    """
    course_made = course_digest(course, phases)
    with _alone_in(out):
        remove_leftovers(out)
        names = [entry.submission.name for entry in entries]
        others = bool(lines_of_others(names, out, course.phases))
        seed = _settled_seed(out, seed, fresh=fresh, others=others)
        origins = {
            name: Origin(submission_digest(entry.submission), course_made, sandboxed)
            for name, entry in zip(names, entries, strict=True)
        }
        done = {} if fresh else _finished(origins, out, seed)
        update_gradebook(done.values(), out, course.phases)
        for name, entry in zip(names, entries, strict=True):
            if name in done:
                yield Outcome(done[name], _page(name, out))
                continue
            outcome = _grade(entry, course, phases, seed, origins[name], out)
            update_gradebook([outcome.grade], out, course.phases)
            yield outcome


def entries_at(
    paths: Sequence[Path], course: Course, phases: Sequence[str], out: Path, command: str
) -> list[Entry]:
    """Read the submissions at these paths; a path may be a class of several submissions.

    A number is added to names that occur twice. `out` does not count, though it may be in a class.
    `command` followed by a path must grade the submission there.

    Raises:
        SubmissionError: there is no submission at a path.
    """
    found = [member for path in paths for member in find_submissions(path, course)]
    members = [path for path in dict.fromkeys(found) if path.resolve() != out.resolve()]
    if not members:
        raise SubmissionError(
            f"There is no submission beside {out}, which is the folder for the grades."
        )
    return [
        Entry(read_submission(path, course, name, phases), f"{command} {shlex.quote(str(path))}")
        for path, name in _unique_names(members).items()
    ]


def _finished(origins: Mapping[str, Origin], out: Path, seed: int) -> dict[str, Grade]:
    """Return the grades of an earlier run that are still valid, by submission."""
    found = {name: read_grade(name, out, origin, seed) for name, origin in origins.items()}
    return {name: grade for name, grade in found.items() if grade is not None}


def _grade(
    entry: Entry, course: Course, phases: Sequence[str], seed: int, origin: Origin, out: Path
) -> Outcome:
    name = entry.submission.name
    try:
        launcher: LauncherName | None = "sandbox" if origin.sandboxed else None
        report = grade(entry.submission, course, phases=phases, seed=seed, launcher=launcher)
        report = replace(report, command=entry.command, origin=origin)
        write_report(report, out, guide_texts(course))
    except Exception as problem:  # noqa: BLE001 - the other submissions must still be graded
        return Outcome(Grade(name, "grader-failed"), _page(name, out), problem=problem)
    return Outcome(summary.grade(report), _page(name, out), report)


def _page(name: str, out: Path) -> Path:
    return out / folder_name(name) / PAGE


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    """Lock the folder against other graders; the system releases the lock with this process."""
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderInUse(
            f"Another grader is writing to {out}. Wait until it has finished, or choose another "
            "folder with --out."
        ) from None
    try:
        yield
    finally:
        lock.release()


def _settled_seed(out: Path, given: int | None, *, fresh: bool, others: bool) -> int:
    """Return the seed for this run, and store it as the folder's seed.

    It is not stored if the folder has grades of `others` from another seed, as these would then
    have to be graded again.
    """
    kept = kept_seed(out)
    if given is not None:
        seed = given
    elif kept is None or (fresh and not others):
        seed = draw_seed()
    else:
        seed = kept
    if seed != kept and (kept is None or not others):
        write_whole(out / STATE, json.dumps({"seed": seed}) + "\n")
    return seed


def _unique_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Return a name for each path; a number is added to names that would share a folder."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for path in paths:
        name = plain = submission_name(path)
        count = 1
        while taken & {folder_name(name), gradebook.cell(name)}:
            count += 1
            name = f"{plain}-{count}"
        names[path] = name
        taken |= {folder_name(name), gradebook.cell(name)}
    return names
