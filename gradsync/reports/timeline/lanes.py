"""Turn events into bars for collectives, and gaps for calls that a rank never made.

This module does not deal with pixels. Events come from a learner's process, so a missing enter, a
second exit or an absurd time may distort a bar, but must not prevent the drawing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from gradsync.records import Collective, Event

MAX_RANKS = 64
SHOWN = 40  # of each rank: the last collectives, because a run fails at its end

_LATEST = 1e7  # seconds; later times are cut
_BRIEFEST = 1e-6  # seconds, the minimum duration
_OTHER_END = {"send": "recv", "recv": "send"}
# In these, all ranks must pass the same dtype and number of elements.
_ALIKE = ("all_reduce", "broadcast", "reduce")


@dataclass(frozen=True, slots=True)
class Bar:
    """One collective on one rank."""

    rank: int
    call: int
    start: float
    end: float | None  # None: it never completed
    collective: Collective
    operation: Hashable  # the same for all calls of one collective or message
    number: int  # of the collective in its group on this rank, from 1
    expected: frozenset[int]  # the ranks that take part

    @property
    def name(self) -> str:
        """Its name in explanations: "all_reduce #4"."""
        return f"{self.collective.op} #{self.number}"


@dataclass(frozen=True, slots=True)
class Gap:
    """The place of a call that a rank never made."""

    rank: int
    start: float
    missed: Bar  # of the first rank that waits in the call

    @property
    def number(self) -> int:
        return self.missed.number

    @property
    def name(self) -> str:
        """The call that the rank should have made; for a message, the other end."""
        op = self.missed.collective.op
        return f"{_OTHER_END.get(op, op)} #{self.number}"


def bars(events: Sequence[Event], world_size: int) -> list[Bar]:
    """Return the collectives of all ranks, by rank, in each rank's order."""
    entered: dict[tuple[int, int], tuple[float, Collective]] = {}
    exited: dict[tuple[int, int], float] = {}
    for event in events:
        if event.kind == "enter" and event.collective and 0 <= event.rank < world_size:
            arrival = _sane(event.seconds), event.collective
            entered.setdefault((event.rank, event.call), arrival)
        elif event.kind == "exit":
            exited.setdefault((event.rank, event.call), _sane(event.seconds))
    counts: dict[Hashable, int] = defaultdict(int)
    found = []
    for rank, call in sorted(entered):
        start, collective = entered[rank, call]
        end = exited.get((rank, call))
        if end is not None:
            end = max(end, start + _BRIEFEST)
        line = _line(rank, collective)
        counts[rank, line] += 1
        number = counts[rank, line]
        expected = _expected(rank, collective, world_size)
        found.append(Bar(rank, call, start, end, collective, (line, number), number, expected))
    return found


def last_of_each_rank(found: Sequence[Bar]) -> list[Bar]:
    """Return the last `SHOWN` bars of each rank."""
    by_rank: dict[int, list[Bar]] = {}
    for bar in found:
        by_rank.setdefault(bar.rank, []).append(bar)
    return [bar for mine in by_rank.values() for bar in mine[-SHOWN:]]


def operations(found: Sequence[Bar]) -> list[list[Bar]]:
    """Return the bars of each collective or message, sorted by rank."""
    together: dict[Hashable, list[Bar]] = {}
    for bar in found:
        together.setdefault(bar.operation, []).append(bar)
    return list(together.values())


def gaps(found: Sequence[Bar]) -> list[Gap]:
    """Return the first missing call of each rank that others wait for and that never comes."""
    first: dict[int, Gap] = {}
    for together in operations(found):
        waiting = [bar for bar in together if bar.end is None]
        if not waiting:
            continue
        missed = min(waiting, key=lambda bar: bar.start)
        came = {bar.rank for bar in together}
        for rank in missed.expected - came:
            gap = Gap(rank, missed.start, missed)
            if rank not in first or gap.start < first[rank].start:
                first[rank] = gap
    return [first[rank] for rank in sorted(first)]


def disagree(together: Sequence[Bar]) -> bool:
    """Return whether the calls of an operation do not match."""
    calls = [bar.collective for bar in together]
    if any(call.op in _OTHER_END for call in calls):
        return False
    labels = {call.label for call in calls if call.label is not None}
    sizes = {(c.dtype, tuple(map(math.prod, c.shapes))) for c in calls if c.op in _ALIKE}
    return len({(c.op, c.root) for c in calls}) > 1 or len(labels) > 1 or len(sizes) > 1


def _line(rank: int, collective: Collective) -> Hashable:
    """Return the sequence of the call: its group's collectives, or the messages of two ranks."""
    if collective.op in _OTHER_END:
        if collective.peer is None:  # from any rank: the sender is unknown
            return collective.group, rank, collective.op, collective.tag
        ends = (rank, collective.peer)
        return collective.group, ends if collective.op == "send" else ends[::-1], collective.tag
    return collective.group if collective.members else collective.op


def _expected(rank: int, collective: Collective, world_size: int) -> frozenset[int]:
    if collective.op in _OTHER_END:
        ranks = {rank} if collective.peer is None else {rank, collective.peer}
    else:
        ranks = set(collective.members) or set(range(world_size))
    return frozenset(ranks & set(range(world_size)))


def _sane(seconds: float) -> float:
    return min(max(seconds, 0.0), _LATEST) if math.isfinite(seconds) else 0.0
