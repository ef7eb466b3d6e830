"""One figure: two medians measured in turns, their ratio and the target."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A measurement, and whether it reaches its target."""

    what: str
    ours: str
    alternative: str  # the usual tool without gradsync, and its measurement; "" if there is none
    ratio: float | None
    target: str
    reached: bool | None  # None: not measured


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
    """Return both medians of alternating measurements, so that noise affects both equally."""
    pairs = [(one(), other()) for _ in range(times)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def shown(duration: float) -> str:
    if duration < 0.01:
        return f"{duration * 1000:.2f} ms"
    return f"{duration * 1000:,.0f} ms" if duration < 10 else f"{duration:,.1f} s"
