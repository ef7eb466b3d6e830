"""Find results that are unusual in their class, by Tukey's fences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles

FEWEST = 8  # quartiles of fewer numbers mean nothing
FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class Fences:
    """The limits outside of which a number is unusual."""

    low: float
    high: float

    def exclude(self, number: float) -> bool:
        return not self.low <= number <= self.high


def fences(numbers: Sequence[float], narrowest: float) -> Fences | None:
    """Return the limits for these numbers, or None if they are too few.

    The limits are 1.5 interquartile ranges below the first and above the third quartile. If more
    than half of the numbers are nearly equal, this range is close to 0 and would make every other
    number unusual. So it counts as at least `narrowest`.
    """
    if len(numbers) < FEWEST:
        return None
    first, _, third = quantiles(numbers, n=4, method="inclusive")
    margin = FACTOR * max(third - first, narrowest)
    return Fences(first - margin, third + margin)
