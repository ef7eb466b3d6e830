"""Faults that a test plans for some of its ranks."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Literal

CALL = re.compile(r"(?P<op>[\w.]+) #(?P<number>[1-9]\d*)")


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
