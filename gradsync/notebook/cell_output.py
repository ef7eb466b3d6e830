"""Show the output of a cell on N ranks while it runs, and the reason if the cell failed.

A rank's failure is shown soon, while other ranks still compute; the final explanation replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from IPython.display import display, update_display

from gradsync.ranks.host.session import CellOutcome
from gradsync.ranks.host.supervise import Run
from gradsync.records import Failure, Observation
from gradsync.reports.notebook import cell_failure, rank_output
from gradsync.reports.timeline import overlap
from gradsync.text import ranks_text, verb

FIRST_SECONDS = 0.4  # a longer cell shows its output while it runs
EACH_SECONDS = 0.25  # between two updates
LONG_SECONDS = 5.0  # after which a hint says how to stop the cell
HOW_TO_STOP = (
    "{ranks} still running. To stop the cell, interrupt the kernel: the square button, or the "
    "menu Kernel. The ranks and their variables are kept."
)
NOTHING = ("", "")


class Display:
    """One place below a cell, whose contents can be replaced."""

    def __init__(self) -> None:
        self._id: str | None = None  # set by the first output

    def show(self, html: str, plain: str) -> None:
        forms: dict[str, Any] = {"text/html": html, "text/plain": plain}
        if self._id is None:
            self._id = display(forms, raw=True, display_id=True).display_id
        else:
            update_display(forms, raw=True, display_id=self._id)


class CellOutput:
    """The display of a cell's output and failure, which is updated while the ranks print."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._output, self._failure, self._hint = Display(), Display(), Display()
        self._began = time.monotonic()
        self._hinted: list[int] = []  # the ranks that the hint names
        self._next = self._began + FIRST_SECONDS
        self._shown: tuple[list[str], Failure | None] = [], None

    def update(self, printed: Sequence[str], failure: Failure | None, run: Run) -> None:
        """Show the ranks' output and failures so far, unless the last update was very recent."""
        is_long = time.monotonic() - self._began > LONG_SECONDS
        if is_long and not self._hinted and (ranks := run.running()):
            self._hinted = ranks
            who = f"{ranks_text(ranks).capitalize()} {verb(ranks, 'is', 'are')}"
            text = HOW_TO_STOP.format(ranks=who)
            self._hint.show(f"<em>{text}</em>", text)
        now = list(printed), failure
        if time.monotonic() < self._next or now == self._shown:
            return
        self._next = time.monotonic() + EACH_SECONDS
        before, self._shown = self._shown, now
        if now[0] != before[0]:
            self._show(rank_output.fold(printed, [()] * len(printed), self._ranks))
        if failure is not None and failure != before[1]:
            nothing = ("",) * len(printed)
            seen = Observation(len(printed), (None,) * len(printed), (), nothing, 0.0, failure)
            failed = cell_failure.CellFailure(
                seen, stopped=None, lost=(), new_group=False, goes_on=True
            )
            self._show_failure(failed)

    def finish(self, outcome: CellOutcome, *, timeline: bool) -> str | None:
        """Show the ranks' complete output, with the values of last expressions, and any failure.

        Returns:
            a summary of the failure in one line, or None.
        """
        if self._hinted:
            self._hint.show(*NOTHING)
        seen = outcome.observation
        self._show(rank_output.fold(seen.output, [v or () for v in seen.values], self._ranks))
        if timeline:
            show_timeline(seen)
        if outcome.stopped is None and seen.failure is None:
            return None
        failed = cell_failure.CellFailure(
            seen=seen,
            stopped=outcome.stopped,
            lost=outcome.lost,
            new_group=outcome.new_group,
            late=outcome.late,
            lost_variables=outcome.lost_variables,
        )
        self._show_failure(failed)
        return failed.summary

    def _show(self, blocks: list[rank_output.Block]) -> None:
        if blocks:
            self._output.show(rank_output.html(blocks), rank_output.plain(blocks))

    def _show_failure(self, failed: cell_failure.CellFailure) -> None:
        self._failure.show(cell_failure.html(failed), cell_failure.plain(failed))


def show_timeline(seen: Observation) -> None:
    """Draw when each rank computed and when it was in a collective."""
    if drawing := overlap.render(seen.events, seen.world_size):
        Display().show(drawing, "(a timeline of the collectives, for a notebook in a browser)")
