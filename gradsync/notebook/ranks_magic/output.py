"""Shows the output of a cell on N ranks while it runs, and why the cell failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from IPython.display import display, update_display

from gradsync.ranks.session import Outcome
from gradsync.records import Observation
from gradsync.reports import cell_failure, overlap
from gradsync.reports import ranks as rank_output

FIRST_SECONDS = 0.4  # a longer cell shows its output while it runs
EACH_SECONDS = 0.25  # between two updates


class CellOutput:
    """The display of a cell's output, which is updated while the ranks print."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._display: str | None = None  # its id, after the first output
        self._next = time.monotonic() + FIRST_SECONDS
        self._shown: list[str] = []

    def update(self, printed: Sequence[str]) -> None:
        """Show the ranks' output so far, unless the last update was very recent."""
        if time.monotonic() < self._next or list(printed) == self._shown:
            return
        self._next = time.monotonic() + EACH_SECONDS
        self._shown = list(printed)
        self._show(rank_output.fold(printed, [()] * len(printed), self._ranks))

    def finish(self, seen: Observation) -> None:
        """Show the ranks' whole output, with the values of last expressions."""
        self._show(rank_output.fold(seen.output, [v or () for v in seen.values], self._ranks))

    def _show(self, blocks: list[rank_output.Block]) -> None:
        if not blocks:
            return
        forms = {"text/html": rank_output.html(blocks), "text/plain": rank_output.plain(blocks)}
        if self._display is None:
            self._display = display(forms, raw=True, display_id=True).display_id
        else:
            update_display(forms, raw=True, display_id=self._display)


def show_timeline(seen: Observation) -> None:
    """Draw when each rank computed and when it was in a collective."""
    if drawing := overlap.render(seen.events, seen.world_size):
        _show(drawing, "(a timeline of the collectives, for a notebook in a browser)")


def show_failure(outcome: Outcome) -> str | None:
    """Show why a cell did not finish on every rank; return a summary, or None if it did."""
    if outcome.stopped is None and outcome.observation.failure is None:
        return None
    failed = cell_failure.CellFailure(
        seen=outcome.observation,
        stopped=outcome.stopped,
        lost=outcome.lost,
        new_group=outcome.new_group,
    )
    _show(cell_failure.html(failed), cell_failure.plain(failed))
    return failed.summary


def _show(html: str, plain: str) -> None:
    forms: dict[str, Any] = {"text/html": html, "text/plain": plain}
    display(forms, raw=True)
