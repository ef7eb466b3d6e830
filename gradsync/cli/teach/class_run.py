"""Grade submissions, show each outcome at once, and print a summary."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradsync.cli.activity import activity
from gradsync.cli.shared import imports_of, say, show
from gradsync.course.catalogue import Course
from gradsync.errors import BROKEN, GraderError, UnusableInput
from gradsync.grading.classes.entries import Entry
from gradsync.grading.classes.grade_class import Execution, Outcome
from gradsync.grading.classes.merging import read_shard, shared_seed
from gradsync.grading.classes.regrading import change_line
from gradsync.grading.fingerprint import course_digests
from gradsync.grading.pages import Written, corrected_text, missing_text
from gradsync.grading.processes.jobs import default_jobs, parallel_tests
from gradsync.grading.store import CHANGES, CLASS_PAGE, GRADEBOOK
from gradsync.grading.tasks import here, in_processes
from gradsync.reports import terminal
from gradsync.reports.text import amount, printable
from gradsync.submission.contents import listing
from gradsync.text import counted

LATEST = 5  # scores in the live display
SHOWN = 10  # names or changed scores that are listed; more are counted


def run_class(
    grade: Callable[..., Iterator[Outcome]],
    count: int,
    out: Path,
    execution: Execution,
    *,
    fresh: bool,
    whole: bool = False,
) -> None:
    """Grade submissions and show the outcomes.

    Args:
        grade: `grade_class` with all its arguments but `execution`.
        count: the number of submissions.
        out: the folder of the grades.
        execution: where the grading is done.
        fresh: whether unchanged submissions are graded again.
        whole: show the complete report of each submission, as for a single one.

    Raises:
        GraderError: the grader failed on some submissions; the others are graded.
    """
    tally = Tally()
    try:
        with shown_progress(count, whole=whole or count == 1) as progress:
            _show(grade(execution=tally.following(execution, progress)), progress, tally)
    except KeyboardInterrupt:
        again = "command again without --fresh" if fresh else "same command again"
        print(f"\ngradsync: Stopped. Run the {again} to continue from here.", file=sys.stderr)
        raise
    tally.show(out, page=count > 1)
    tally.check()


def part_of(
    members: Sequence[Entry],
    shard: str | None,
    course: Course,
    phases: Sequence[str],
    seed: int | None,
) -> tuple[Sequence[Entry], int | None]:
    """Return one of several parts of a class, and the seed that all of them have in common.

    Without a shard, these are all submissions, and the given seed.

    Raises:
        UnusableInput: there is no such part, or it is empty.
    """
    if shard is None:
        return members, seed
    part = read_shard(shard).part(members)
    if not part:
        raise UnusableInput(f"--shard {shard} is empty: there are only {len(members)} submissions.")
    if seed is None:
        seed = shared_seed(course_digests(course, phases), members)
    return part, seed


def execution_of(count: int, jobs: int | None, cluster: str | None) -> Execution:
    """Return where to grade this many submissions, and how many tests of each run at once.

    Raises:
        UnusableInput: there is no such cluster.
    """
    if cluster is not None:
        with imports_of("cluster"):
            from gradsync.grading.processes.cluster import on_cluster
        return Execution(on_cluster(cluster, say), 1)
    jobs = min(jobs, count) if jobs else default_jobs(count)
    return Execution(here if jobs == 1 else in_processes(jobs), parallel_tests(jobs))


class Tally:
    """Counts the outcomes of a run."""

    def __init__(self) -> None:
        self.others: list[str] = []  # names whose lines are kept
        self.missing: list[str] = []  # people on the roster who handed in nothing
        self.corrected = 0  # submissions whose points differ from the points of the tests
        self.graded = self.kept = self.unreadable = 0
        self.lost: dict[str, str] = {}  # submissions on which the grader failed, and why
        self.again = 0  # submissions that had a grade before
        self.changes: list[str] = []  # lines on points that changed

    def count(self, outcome: Outcome) -> None:
        """Count an outcome."""
        report = outcome.report
        if report.problem:
            self.lost[printable(report.submission)] = printable(report.problem)
        elif outcome.is_new and report.status == "unreadable":
            self.unreadable += 1
        elif outcome.is_new:
            self.graded += 1
        else:
            self.kept += 1
        if outcome.change is not None:
            self.again += 1
            if outcome.change.tests:
                self.changes.append(change_line(outcome.change))

    def following(self, execution: Execution, progress: Lines) -> Execution:
        """Return an execution that reports to the display and to this tally."""

        def written(tables: Written) -> None:
            self.missing, self.corrected = tables.missing, tables.corrected
            for warning in tables.warnings:
                progress.print(warning)

        return replace(
            execution, on_begin=progress.begin, on_kept=self.others.extend, on_written=written
        )

    def show(self, out: Path, *, page: bool) -> None:
        """Print the counts of submissions, the kept lines and the missing people."""
        kept = f", {self.kept} unchanged (--fresh grades them again)" if self.kept else ""
        unreadable = f", {self.unreadable} unreadable" * bool(self.unreadable)
        print(f"{out / GRADEBOOK}: {self.graded} graded{unreadable}{kept}")
        if self.changes:
            changed = counted(len(self.changes), "score")
            print(f"{out / CHANGES}: {changed} changed by grading again:")
            for text in self.changes[:SHOWN]:
                print(f"  {text}")
            if len(self.changes) > SHOWN:
                print(f"  and {len(self.changes) - SHOWN} more")
        elif self.again:
            print(f"{counted(self.again, 'submission')} graded again: no score changed")
        if self.others:
            kept = counted(len(self.others), "line")
            print(f"The gradebook keeps {kept} of other submissions: {listing(self.others)}")
        if self.corrected:
            print(corrected_text(self.corrected))
        if self.missing:
            print(missing_text(self.missing))
        if page:
            print(f"{out / CLASS_PAGE}: scores, common mistakes and a table of all submissions")

    def check(self) -> None:
        """Raise GraderError if the grader failed on some submissions; the others are graded."""
        if self.lost:
            names = listing(self.lost, most=SHOWN)
            advice = f"no grade for {names}. Run the same command again."
            if all(problem.startswith(BROKEN) for problem in self.lost.values()):
                advice = f"no grade for {names}. Correct the test, then run the same command again."
            raise GraderError(advice)


def _show(outcomes: Iterable[Outcome], progress: Lines, tally: Tally) -> None:
    """Show each outcome when it is known, and count the outcomes."""
    known: set[str] = set()
    for outcome in outcomes:
        tally.count(outcome)
        progress.end(outcome)
        report = outcome.report
        if report.problem and report.problem not in known:  # a broken test fails on everybody
            known.add(report.problem)
            name = printable(report.submission)
            progress.print(f"{report.traceback}{name} could not be graded: {report.problem}")


@contextmanager
def shown_progress(total: int, *, whole: bool) -> Iterator[Lines]:
    """Show the progress of a run of so many submissions while the block runs.

    Args:
        total: the number of submissions.
        whole: show the complete report of each.
    """
    if whole:
        with ExitStack() as stack:
            yield Reports(total, stack)
    elif sys.stdout.isatty():
        console = Console()
        # No thread redraws it: the grader may fork, and a fork must not inherit a held lock.
        with Live(console=console, auto_refresh=False, transient=True) as live:
            yield Display(total, live)
    else:
        yield Lines()


class Lines:
    """Prints a line for each submission, for a file or another program."""

    def begin(self, name: str) -> None:
        """Show that the grading of a submission begins."""

    def end(self, outcome: Outcome) -> None:
        """Show an outcome."""
        print(line(outcome), flush=True)

    def print(self, text: str) -> None:
        """Show a message."""
        say(text)


class Reports(Lines):
    """Shows the complete report of each submission."""

    def __init__(self, total: int, stack: ExitStack) -> None:
        self._total, self._stack = total, stack
        self._begun = 0

    def begin(self, name: str) -> None:
        self._begun += 1
        place = f", {self._begun} of {self._total}" if self._total > 1 else ""
        self._stack.enter_context(activity()).show(f"grading {printable(name)}", place)

    def end(self, outcome: Outcome) -> None:
        self._stack.close()
        if outcome.report.problem or not outcome.is_new:
            print(line(outcome))
        else:
            show(terminal.render, outcome.report)
            print(f"{outcome.page}\n")


class Display(Lines):
    """Shows the progress, running submissions, time left and latest scores in a terminal."""

    def __init__(self, total: int, live: Live) -> None:
        self._total, self._live = total, live
        self._running: dict[str, float] = {}  # by name, the start time
        self._latest: deque[str] = deque(maxlen=LATEST)
        self._done = self._graded = 0
        self._began = time.monotonic()

    def begin(self, name: str) -> None:
        self._running[name] = time.monotonic()
        self._refresh()

    def end(self, outcome: Outcome) -> None:
        self._running.pop(outcome.report.submission, None)
        self._done += 1
        self._graded += outcome.is_new
        self._latest.append(line(outcome))
        self._refresh()

    def print(self, text: str) -> None:
        self._live.console.print(Text(f"gradsync: {text}"))

    def _refresh(self) -> None:
        bar = Table.grid(padding=(0, 1, 0, 0))
        width = min(self._live.console.width // 3, 40)
        progress = ProgressBar(total=max(self._total, 1), completed=self._done, width=width)
        bar.add_row(progress, f"{self._done} of {self._total}", self._time_left())
        latest = [Text(text, no_wrap=True, overflow="ellipsis") for text in self._latest]
        running = Text(
            f"grading {', '.join(map(printable, self._running))}", "dim", no_wrap=True,
            overflow="ellipsis",
        )  # fmt: skip
        self._live.update(Group(*latest, bar, running), refresh=True)

    def _time_left(self) -> str:
        if not self._graded:
            return ""
        each = (time.monotonic() - self._began) / self._graded
        seconds = each * (self._total - self._done)
        if seconds < 90:
            return f"about {counted(round(seconds), 'second')} left"
        return f"about {counted(round(seconds / 60), 'minute')} left"


def line(outcome: Outcome) -> str:
    """Return a line on an outcome: the score and the page, or a note that there is no grade."""
    report = outcome.report
    name = printable(report.submission)
    if report.problem:
        return f"{name}: could not be graded"
    unchanged = "" if outcome.is_new else "unchanged, "
    unreadable = "could not be read, " if report.status == "unreadable" else ""
    score = f"{amount(report.score)} of {amount(report.max_score)} points"
    return f"{name}: {score}, {unreadable}{unchanged}{outcome.page}"
