"""Trusted: the order in which the ranks of a run make their calls.

In a run with a schedule, every rank stops before each call, after each call that it does not wait
for, and when it sees that a call is not complete. When all ranks have stopped or wait for others,
the schedule chooses the one that continues. So calls start one after another, in an order that
follows from the schedule's number and from the program.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping


class Schedule:
    """Chooses the rank that continues, whenever all ranks wait for their turn or for each other.

    In schedule 0, it is the lowest rank. In the next ones, one rank is late before each call, and
    then one after each call. All others are random.
    """

    def __init__(self, number: int, world_size: int) -> None:
        after, self._late = divmod(number - 1, world_size)
        self._place = {-1: None, 0: "before", 1: "after"}.get(after, "any")
        self._random = random.Random(f"schedule {number}")
        self._polls: Counter[int] = Counter()  # turns of ranks that only look if a call is complete

    def first(self, ready: Mapping[int, str]) -> int:
        """Return one of these ranks, which wait "before" or "after" a call, or in a "poll"."""
        at_calls = [rank for rank, place in sorted(ready.items()) if place != "poll"]
        if not at_calls:
            rank = min(ready, key=lambda rank: (self._polls[rank], rank))
            self._polls[rank] += 1
            return rank
        if self._place == "any":
            return self._random.choice(at_calls)
        return min(at_calls, key=lambda rank: rank == self._late and ready[rank] == self._place)
