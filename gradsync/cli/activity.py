"""What a command is doing just now, while it has nothing to show yet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Activity:
    """One line that changes in a terminal; elsewhere a line for each new subject, on stderr.

    No thread redraws it: the grader forks, and a fork must not find a lock held.
    """

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._subject = ""

    def show(self, subject: str, detail: str = "") -> None:
        """Say what is being done: a subject, "checking phase 1", and details that change often."""
        if self._live is not None:
            self._live.update(Text(f"{subject}{detail} ..."), refresh=True)
        elif subject != self._subject:
            print(f"gradsync: {subject} ...", file=sys.stderr, flush=True)
        self._subject = subject


@contextmanager
def activity() -> Iterator[Activity]:
    """Show what is being done while the block runs; nothing of it stays in a terminal."""
    if not (sys.stdout.isatty() and sys.stderr.isatty()):
        yield Activity(None)
        return
    console = Console(file=sys.stderr)  # pytest's output is caught: take the stream of now
    with Live(
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:
        yield Activity(live)
