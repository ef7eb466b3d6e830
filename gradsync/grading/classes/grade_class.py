"""Grade many submissions into one folder; a run that was stopped can be continued.

Each submission's report is written when it is graded, and the gradebook is made from the reports. A
later run keeps each complete report that was made from the same submission, course and seed. It
also keeps the grades of submissions that are not named, and then the seed of the folder.
Several submissions are graded at a time, each in its own process. These processes return texts;
only this process writes files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from gradsync.course.catalogue import Course
from gradsync.errors import GraderError, UnusableInput
from gradsync.grading.classes import facts
from gradsync.grading.classes.entries import Entry
from gradsync.grading.classes.files import (
    Gradebook,
    Written,
    lines_of_others,
    write_class,
)
from gradsync.grading.classes.roster import read_roster
from gradsync.grading.fingerprint import course_digest
from gradsync.grading.grade import draw_seed
from gradsync.grading.output_files import (
    FACTS,
    PAGE,
    ROSTER,
    STATE,
    folder_name,
    former_gradebook,
    kept_seed,
    read_grade,
    remove_leftovers,
    write_failure,
    write_report,
    write_whole,
)
from gradsync.grading.tasks import Conditions, Graded, GradingTask, Perform, failed, here
from gradsync.records import Grade, Report
from gradsync.reports import gradebook

LOCK = ".grading.lock"
KILLED = GraderError(
    "the process that graded it was killed twice. If memory ran out, use a smaller --jobs."
)


class FolderInUse(UnusableInput):
    """Another grader is writing to the folder."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for a submission: graded now, kept, or no grade because the grader failed."""

    grade: Grade
    page: Path  # its report.html
    is_new: bool  # graded now
    report: Report | None = None  # if it was asked for
    problem: str = ""  # if the grader failed
    traceback: str = ""  # if the problem was unexpected


@dataclass(frozen=True, slots=True)
class Execution:
    """Options for running the grading and reporting its progress. They do not affect grades."""

    perform: Perform = here  # does the tasks, here or in other processes
    parallel: int | None = None  # tests of a submission at a time; None: as many as are useful
    with_reports: bool = False  # also return the complete reports, which are large
    on_begin: Callable[[str], None] = lambda _: None  # called with each submission's name
    # Called at the start with the names of other submissions whose lines and reports are kept.
    on_kept: Callable[[Sequence[str]], None] = lambda _: None
    # Called at the end with the notes for staff on the tables of the class.
    on_written: Callable[[Written], None] = lambda _: None


def grade_class(
    entries: Sequence[Entry],
    course: Course,
    phases: Sequence[str],
    out: Path,
    *,
    roster: Path | None = None,
    seed: int | None = None,
    fresh: bool = False,
    sandboxed: bool = True,
    execution: Execution = Execution(),
    members: Sequence[Entry] | None = None,
) -> Iterator[Outcome]:
    """Grade the submissions into `out`, and yield each outcome; unchanged submissions come first.

    Names must be unique. If the grader fails on one submission, only that one gets no points; the
    next run tries it again.

    Args:
        entries: the submissions, in the order of grading.
        course: the course with the hidden suites.
        phases: names of phases, such as "phase1".
        out: the folder of the reports and the gradebook.
        roster: the roster of the class; None takes the folder's roster.
        seed: the seed of the tests' random inputs; None takes the folder's seed.
        fresh: grade unchanged submissions again, too.
        sandboxed: run the ranks in a sandbox; `ranks.sandbox.check` checks whether that works.
        execution: where the grading is done.
        members: all submissions of the class, if `entries` are a part of them.

    Raises:
        FolderInUse: another grader is writing to `out`.
        NoGradebook: the gradebook.csv in `out` can't be read.
        TableError: the roster.csv or overrides.csv in `out` can't be used.
        CourseError: a phase has no hidden suite, or course.toml can't be used.
        OSError: `out` can't be written to.
    """
    made = course_digest(course, phases)
    with lock_folder(out):
        remove_leftovers(out)
        _store_facts(entries if members is None else members, roster, out, course)
        others = lines_of_others([entry.facts.learner for entry in entries], out, course)
        execution.on_kept(others)
        seed = _settled_seed(out, seed, fresh=fresh, others=bool(others))
        conditions = Conditions(course, tuple(phases), seed, made, sandboxed, execution.parallel)
        try:
            done = {} if fresh else _finished(entries, conditions, out)
            yield from _outcomes(entries, done, conditions, execution, out)
        finally:
            execution.on_written(write_class(out, course))


def _outcomes(
    entries: Sequence[Entry],
    done: Mapping[str, Grade],
    conditions: Conditions,
    execution: Execution,
    out: Path,
) -> Iterator[Outcome]:
    book = Gradebook(out, conditions.course)
    book.update()
    for name, grade in done.items():
        yield Outcome(grade, _page(name, out), is_new=False)

    def tasks() -> Iterator[GradingTask]:
        for entry in entries:
            if entry.name not in done:
                execution.on_begin(entry.name)
                submission = entry.submission(conditions.course, conditions.phases)
                yield GradingTask(submission, entry.command, conditions, execution.with_reports)

    for task, graded in execution.perform(tasks()):
        name = task.submission.name
        outcome = _outcome(name, graded or failed(name, KILLED), out)
        book.update()
        yield outcome


def _outcome(name: str, graded: Graded, out: Path) -> Outcome:
    """Write the files of a grade, or the reason why there is none."""
    try:
        if not graded.problem:
            write_report(name, graded.page, graded.content, out)
    except (OSError, ValueError) as problem:  # the other submissions must still be graded
        graded = failed(name, problem)
    if graded.problem:
        write_failure(name, graded.problem, out)
    return Outcome(
        grade=graded.grade,
        page=_page(name, out),
        is_new=True,
        report=graded.report,
        problem=graded.problem,
        traceback=graded.traceback,
    )


def _finished(entries: Sequence[Entry], conditions: Conditions, out: Path) -> dict[str, Grade]:
    """Return the grades of an earlier run that are still valid, by submission."""
    found = {}
    for entry in entries:
        origin = conditions.origin(entry.submission(conditions.course, conditions.phases))
        grade = read_grade(entry.name, out, origin, conditions.seed)
        if grade is not None:
            found[entry.name] = grade
    return found


def _store_facts(entries: Sequence[Entry], roster: Path | None, out: Path, course: Course) -> None:
    """Store the roster and the facts on submissions for later runs.

    If a submission has neither a line in the gradebook nor a report, staff removed it. Then its
    facts are removed, too.
    """
    if roster is not None:
        read_roster(roster)  # it must be usable before it replaces the previous one
        write_whole(out / ROSTER, roster.read_bytes().decode("utf-8-sig"))
    stored = facts.read_facts(out)
    lines = gradebook.statuses(former_gradebook(out), course.phases)
    previous = {
        name: each
        for name, each in stored.items()
        if gradebook.cell(each.learner) in lines or (out / folder_name(name)).exists()
    }
    new = facts.merged(previous, (entry.facts for entry in entries))
    if new != stored:
        write_whole(out / FACTS, facts.render(new))


def _page(name: str, out: Path) -> Path:
    return out / folder_name(name) / PAGE


@contextmanager
def lock_folder(out: Path) -> Iterator[None]:
    """Lock the folder against other graders; the system releases the lock with this process.

    Raises:
        FolderInUse: another grader has locked it.
    """
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

    It is not stored if the folder has grades of `others` from a different seed, because these
    would then have to be graded again.
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
