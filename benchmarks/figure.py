"""One figure: two medians measured in turns, their ratio, and what is wanted of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement; `holds` says whether it reaches what is wanted."""

    what: str
    ours: str
    instead: str  # what a user would take, and its measurement; "" where there is none
    ratio: float | None
    wanted: str
    holds: bool


def seconds(action: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def median_seconds(action: Callable[[], object], times: int) -> float:
    return statistics.median(seconds(action) for _ in range(times))


def in_turns(
    one: Callable[[], float], other: Callable[[], float], times: int
) -> tuple[float, float]:
    """Return both medians of measurements that alternate, so that noise meets both alike."""
    pairs = [(one(), other()) for _ in range(times)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def shown(duration: float) -> str:
    return f"{duration * 1000:,.0f} ms" if duration < 10 else f"{duration:,.1f} s"
