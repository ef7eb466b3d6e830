"""Show the grading of submissions: complete reports, a live display, or a line for each."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gradsync.cli.activity import activity
from gradsync.cli.app import say, show
from gradsync.reports import terminal
from gradsync.reports.text import amount, printable
from gradsync.text import counted

if TYPE_CHECKING:
    from gradsync.grading.classes.grade_class import Outcome

LATEST = 5  # scores in the live display


class Progress(Protocol):
    """Shows the progress of a run."""

    def begin(self, name: str) -> None:
        """Show that the grading of a submission begins."""

    def end(self, outcome: Outcome) -> None:
        """Show an outcome."""

    def print(self, text: str) -> None:
        """Show a message."""


@contextmanager
def shown_progress(total: int, *, whole: bool) -> Iterator[Progress]:
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


class Reports:
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

    def print(self, text: str) -> None:
        say(text)


class Lines:
    """Prints a line for each submission, for a file or another program."""

    def begin(self, name: str) -> None:
        pass

    def end(self, outcome: Outcome) -> None:
        print(line(outcome), flush=True)

    def print(self, text: str) -> None:
        say(text)


class Display:
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
