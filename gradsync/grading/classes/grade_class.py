"""Grade many submissions into one folder; a run that was stopped can be continued.

Each submission's report is stored when it is graded. A later run keeps each report that was made
from the same submission, course and seed. It also keeps the grades of submissions that are not
named, and then the seed of the folder. Several submissions are graded at a time, each in its own
process, which returns the report; only this process writes files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from gradsync.course.catalogue import Course
from gradsync.course.guides import guide_texts
from gradsync.course.settings import read_settings
from gradsync.errors import GraderError, UnusableInput
from gradsync.grading.classes.entries import Entry
from gradsync.grading.classes.regrading import (
    Change,
    change_of,
    changes_text,
    check_phases,
    scaled,
    with_other_phases,
)
from gradsync.grading.classes.results import ClassReader
from gradsync.grading.classes.roster import replacement
from gradsync.grading.fingerprint import course_digests
from gradsync.grading.pages import Written, page_of, write_class, write_gradebook
from gradsync.grading.store import CHANGES, ROSTER, GradeStore, folder_name
from gradsync.grading.tasks import Conditions, GradingTask, Perform, failed, here
from gradsync.records import Report
from gradsync.reports import gradebook
from gradsync.reports.guide_sections import GuideText

SMALL = 50  # lines of a gradebook that is always kept up to date
SHARE = 0.05  # the part of a run that is spent on writing the gradebook of a larger class
KILLED = GraderError(
    "the process that graded it was killed twice, or did not finish in time. If memory ran out, "
    "use a smaller --jobs."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome for a submission: a report that was made now, or one that was kept."""

    report: Report  # a kept one without events and output
    page: Path  # its report.html
    is_new: bool  # graded now
    change: Change | None = None  # of its grade before, if there was one; perhaps in no test


@dataclass(frozen=True, slots=True)
class Execution:
    """Options for running the grading and reporting its progress. They do not affect grades."""

    perform: Perform = here  # does the tasks, here or in other processes
    parallel: int | None = None  # tests of a submission at a time; None: as many as are useful
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
    add_phase: bool = False,
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
        add_phase: keep the points of the other phases that the folder has grades of.

    Raises:
        UnusableInput: the folder has grades of other phases, and `add_phase` is false.
        FolderInUse: another grader is writing to `out`.
        TableError: the roster.csv or overrides.csv in `out` can't be used.
        CourseError: a phase has no hidden suite, or course.toml can't be used.
        OSError: `out` can't be written to.
    """
    made, store = course_digests(course, phases), GradeStore(out)
    with store.locked():
        store.remove_leftovers()
        check_phases(store.phases(), phases, out, add=add_phase)
        store.remember(course.root)
        if roster is not None:
            store.write(ROSTER, replacement(roster, out))
        store.update_facts(
            [entry.facts for entry in entries], [entry.facts for entry in members or ()]
        )
        points = read_settings(course.root).points
        for place, record in list(store.records().items()):  # so that new grades can be compared
            if scaled(record.report, points) is not record.report:
                store.save(scaled(store.report(place), points))
        others = ClassReader(store, course).submissions()
        others -= {entry.facts.learner for entry in entries}
        execution.on_kept(sorted(map(gradebook.cell, others)))
        seed = store.settle_seed(seed, fresh=fresh, others=bool(others))
        changes: list[Change] = []
        conditions = Conditions(course, tuple(phases), seed, made, sandboxed, execution.parallel)
        try:
            done = {} if fresh else _finished(entries, conditions, store)
            keep = store.graded if add_phase else lambda _: None
            for outcome in _outcomes(entries, done, conditions, execution, store, keep):
                if outcome.change is not None and outcome.change.tests:
                    changes.append(outcome.change)
                yield outcome
        finally:
            if changes:
                store.write(CHANGES, changes_text(changes, store.read_text(CHANGES) or ""))
            store.update_facts()
            execution.on_written(write_class(store, course))


def _outcomes(
    entries: Sequence[Entry],
    done: Mapping[str, Report],
    conditions: Conditions,
    execution: Execution,
    store: GradeStore,
    kept: Callable[[str], Report | None],
) -> Iterator[Outcome]:
    """Yield the outcomes; `kept` returns the report whose other phases a new report keeps."""
    book = Gradebook(store, conditions.course)
    book.update()
    for name, report in done.items():
        yield Outcome(report, store.page(name), is_new=False)

    groups = _groups(entry for entry in entries if entry.name not in done)

    def tasks() -> Iterator[GradingTask]:
        for first, *_ in groups.values():
            execution.on_begin(first.name)
            submission = first.submission(conditions.course, conditions.phases)
            yield GradingTask(submission, first.command, conditions)

    guides = guide_texts(conditions.course)
    for task, graded in execution.perform(tasks()):
        for entry in groups[task.submission.name]:
            known = store.records().get(folder_name(entry.name))
            before = known.report if known else None
            if before is not None and before.problem:
                before = store.graded(entry.name)  # the grade before the grader failed
            report = _of_member(graded or failed(entry.name, KILLED), entry, task)
            report = _stored(report, task.submission.files, guides, store, kept)
            book.update()
            change = change_of(before, report)
            yield Outcome(report, store.page(entry.name), is_new=True, change=change)


def _groups(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Return the entries of each submission, by the name of the first: a group's is graded once."""
    found: dict[object, list[Entry]] = {}
    for entry in entries:
        key = (entry.source, entry.facts.group) if entry.facts.group else entry.name
        found.setdefault(key, []).append(entry)
    return {members[0].name: members for members in found.values()}


def _of_member(report: Report, entry: Entry, task: GradingTask) -> Report:
    """Return the report on a submission as that of one of the learners who handed it in."""
    if report.submission == entry.name:
        return report
    own = replace(task.submission, name=entry.name)
    origins = () if report.problem else task.conditions.origins(own)
    return replace(report, submission=entry.name, command=entry.command, origins=origins)


def _stored(
    report: Report,
    files: Mapping[str, bytes],
    guides: Sequence[GuideText],
    store: GradeStore,
    kept: Callable[[str], Report | None],
) -> Report:
    """Store a report with its page, or the reason why this is not possible; return the report."""
    report = replace(report, graded_at=datetime.now(timezone.utc))
    try:
        report = with_other_phases(report, kept(report.submission))
        store.save(report, page_of(report, guides, files), files)
    except UnusableInput as problem:
        report = failed(report.submission, GraderError(str(problem)))
        store.save(report)
    except (OSError, ValueError) as problem:  # the other submissions must still be graded
        report = failed(report.submission, problem)
        store.save(report)
    return report


def _finished(
    entries: Sequence[Entry], conditions: Conditions, store: GradeStore
) -> dict[str, Report]:
    """Return the grades of an earlier run that are still valid, by submission."""
    found = {}
    for entry in entries:
        origins = conditions.origins(entry.submission(conditions.course, conditions.phases))
        report = store.reusable(entry.name, origins, conditions.seed)
        if report is not None:
            found[entry.name] = report
    return found


class Gradebook:
    """The gradebook during a run; it is written often, but takes little of the time."""

    def __init__(self, store: GradeStore, course: Course) -> None:
        self._store, self._course = store, course
        self._next = 0.0  # when it may be written again

    def update(self) -> None:
        """Write the gradebook if the last time was long enough ago.

        Errors are ignored here: staff may be editing roster.csv or overrides.csv. `write_class`
        reports them at the end.
        """
        began = time.monotonic()
        if began < self._next:
            return
        results = []
        with suppress(UnusableInput):
            results = list(ClassReader(self._store, self._course).results())
            write_gradebook(self._store, results, self._course)
        ended = time.monotonic()
        self._next = ended if len(results) < SMALL else ended + (ended - began) / SHARE
