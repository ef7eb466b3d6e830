"""Faults that a test plans for some of its ranks, and the schedules in which ranks are late."""

from __future__ import annotations

import random
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

CALL = re.compile(r"(?P<op>[\w.]+) #(?P<number>[1-9]\d*)")
MOST_HOLDS = 200  # on each rank


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one rank."""

    kind: Literal["kill", "slow"]
    rank: int
    at: str | None = None  # the call at which it happens, as messages name it: "all_reduce #3"
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.at is not None and not CALL.fullmatch(self.at):
            raise ValueError(f"at must name a call, such as 'all_reduce #3', got {self.at!r}")

    def plain(self) -> dict[str, Any]:
        """Return the arguments of this fault as plain data."""
        return asdict(self)

    def happens_at(self, op: str, number: int) -> bool:
        """Return whether it happens at a rank's call of `op`, which is the group's `number`-th."""
        return self.at is None or self.at == f"{op} #{number}"

    def __str__(self) -> str:
        return f"{self.kind}(rank={self.rank}, at={self.at!r})"


def kill(rank: int, at: str) -> Fault:
    """Kill a rank just before it makes a call; the other ranks continue, as with `may_fail`.

    Args:
        rank: the rank.
        at: the call, as messages name it: "all_reduce #3" is the third collective of its group.
    """
    return Fault("kill", rank, at)


def slow(rank: int, seconds: float, at: str | None = None) -> Fault:
    """Delay a rank before a call, or before each of its calls."""
    return Fault("slow", rank, at, seconds)


def holds(schedule: int, rank: int, world_size: int) -> tuple[list[bool], list[bool]]:
    """Return at which of its calls a rank is late: before it starts them, and after.

    A rank that is late continues when all other ranks wait, have finished, or are late, too. In
    schedule 0, no rank is. In the next ones, one rank is late before each call, and then one after
    each call. All others are drawn from the schedule's number.
    """
    never, always = [False] * MOST_HOLDS, [True] * MOST_HOLDS
    if schedule == 0:
        return never, never
    if schedule <= 2 * world_size:
        after, turn = divmod(schedule - 1, world_size)
        mine = always if turn == rank else never
        return (never, mine) if after else (mine, never)
    drawn = random.Random(f"schedule {schedule}, rank {rank}")
    before, behind = ([drawn.random() < 0.5 for _ in range(MOST_HOLDS)] for _ in range(2))
    return before, behind
