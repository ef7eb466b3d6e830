"""A readable time axis, which maps times to positions.

A run consists mostly of pauses, with collectives of microseconds between them. So the axis keeps
the order of all times, but shortens long pauses, and gives each bar a minimum width.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gradsync.reports.timeline.lanes import Bar, Gap

_SHARE = 0.2  # of the axis that one pause may take
_EVEN = 0.33  # share of the width that is linear; the rest widens narrow parts
_ROUNDS = 20  # of shortening pauses


@dataclass(frozen=True, slots=True)
class Scale:
    """The times at which bars begin or end, and their positions from the left."""

    moments: list[float]
    places: list[float]
    breaks: list[float]  # where a pause was shortened
    edge: float  # where bars that never end are cut off

    def span(self, item: Bar | Gap) -> tuple[float, float]:
        """Return the positions where a bar or gap begins and ends."""
        begin = self.place(item.start)
        if isinstance(item, Gap) or item.end is None:
            return begin, self.edge
        return begin, self.place(item.end)

    def place(self, moment: float) -> float:
        return self.places[min(bisect_left(self.moments, moment), len(self.places) - 1)]


def fit(bars: Sequence[Bar], *, width: float, narrowest: float, tail: float) -> Scale:
    """Return a scale for `bars`, at least `width` wide, with a `tail` for bars that never end."""
    ends = {bar.end for bar in bars if bar.end is not None}
    moments = sorted({bar.start for bar in bars} | ends)
    pauses = [later - earlier for earlier, later in pairwise(moments)]
    shortened = _shorten(pauses)
    total = sum(shortened) or 1.0
    begins: dict[float, float] = {}  # end -> the latest begin of bars with this end
    for bar in bars:
        if bar.end is not None:
            begins[bar.end] = max(bar.start, begins.get(bar.end, bar.start))
    places, breaks, known = [0.0], [], {moments[0]: 0.0}
    for moment, pause, drawn in zip(moments[1:], pauses, shortened, strict=True):
        place = places[-1] + drawn / total * _EVEN * width
        if moment in begins:
            place = max(place, known[begins[moment]] + narrowest)
        if drawn < pause / 2:
            breaks.append((places[-1] + place) / 2)
        known[moment] = place
        places.append(place)
    tail = tail if any(bar.end is None for bar in bars) else 0.0
    stretch = max(1.0, (width - tail) / (places[-1] or 1.0))
    places = [place * stretch for place in places]
    breaks = [place * stretch for place in breaks]
    return Scale(moments, places, breaks, max(places[-1] + tail, width))


def rows(spans: Sequence[tuple[float, float]]) -> list[int]:
    """Return, for each span, the first row in which it overlaps no earlier one."""
    free: list[float] = []  # row -> the end of its last span
    placed = {}
    for index in sorted(range(len(spans)), key=lambda index: spans[index]):
        begin, end = spans[index]
        row = next((row for row, last in enumerate(free) if last <= begin), len(free))
        free[row : row + 1] = [end]
        placed[index] = row
    return [placed[index] for index in range(len(spans))]


def _shorten(pauses: list[float]) -> list[float]:
    share = max(_SHARE, 2 / max(len(pauses), 1))
    for _ in range(_ROUNDS):
        longest = share * sum(pauses)
        pauses = [min(pause, longest) for pause in pauses]
    return pauses
