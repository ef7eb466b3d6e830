"""Show the activity of a command while it has no results yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Activity:
    """A line that is updated in a terminal; elsewhere one line on stderr for each new subject.

    No thread redraws it: the grader forks, and a forked process must not inherit a held lock.
    """

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._subject = ""

    def show(self, subject: str, detail: str = "") -> None:
        """Show a subject, such as "checking phase 1", and details that change often."""
        if self._live is not None:
            self._live.update(Text(f"{subject}{detail} ..."), refresh=True)
        elif subject != self._subject:
            print(f"gradsync: {subject} ...", file=sys.stderr, flush=True)
        self._subject = subject


@contextmanager
def activity() -> Iterator[Activity]:
    """Show activity while the block runs; the line is removed from the terminal afterwards."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield Activity(None)
        return
    console = Console(file=sys.stderr)  # pytest captures output: use the current stream
    with Live(
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        yield Activity(live)
