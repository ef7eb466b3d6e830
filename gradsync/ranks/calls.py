"""Trusted, pure: one collective as one rank entered it, and whether those of the ranks fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from gradsync.records import Collective

# Ranks may put tensors of unlike sizes into these.
UNEVEN_OPS = {"all_to_all", "all_to_all_single", "barrier", "monitored_barrier"}
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "float16": 2, "bfloat16": 2,
    "int64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip

Mail = tuple[str, int, int, int]  # a group, from, to, tag


@dataclass(eq=False, slots=True)
class Meeting:
    """Calls of different ranks that belong together."""

    position: int  # among those of its group, or of its sender and receiver, from 0
    calls: dict[int, Call] = field(default_factory=dict)  # by rank
    conflict: str | None = None  # what the calls disagree in


@dataclass(eq=False, slots=True)
class Call:
    """One collective as one rank entered it."""

    rank: int
    collective: Collective
    expected: frozenset[int]  # the ranks that meet in it
    meeting: Meeting
    number: int = 1  # which of its kind it is for this rank, in a notebook in this cell; 0: before
    mail: Mail | None = None  # of a send or recv
    from_anyone: bool = False
    left: bool = False  # it is complete for this rank
    pending: tuple[Call, ...] = ()  # that the end of all groups waits for

    @property
    def elsewhere(self) -> set[int]:
        """The ranks that have yet to come."""
        return set(self.expected.difference(self.meeting.calls))


def disagreement(views: Sequence[Collective]) -> str | None:
    """Return what the ranks' views of one meeting disagree in."""
    first = views[0]
    if first.op in ("send", "recv"):
        return None if _fits(views) else "shapes"
    if any(view.op != first.op for view in views):
        return "ops"
    if any(view.root != first.root for view in views):
        return "roots"
    if first.op in UNEVEN_OPS:
        return None
    if any((v.dtype, numel(v)) != (first.dtype, numel(first)) for v in views):
        return "shapes"
    return "reductions" if any(view.reduce != first.reduce for view in views) else None


def _fits(ends: Sequence[Collective]) -> bool:
    """Tell whether a message fits its receiver: a longer one aborts it, a shorter one is fine."""
    send = next((end for end in ends if end.op == "send"), None)
    recv = next((end for end in ends if end.op == "recv"), None)
    if send is None or recv is None:
        return True
    if send.dtype != recv.dtype:
        return bytes_of(send) == bytes_of(recv)
    return bytes_of(send) <= bytes_of(recv)


def numel(collective: Collective) -> int:
    """Return the elements of the tensors that a rank put into a collective."""
    return sum(map(math.prod, collective.shapes))


def bytes_of(collective: Collective) -> int:
    """Return the bytes of the tensors that a rank put into a collective."""
    return numel(collective) * ITEM_BYTES.get(collective.dtype or "", 4)
