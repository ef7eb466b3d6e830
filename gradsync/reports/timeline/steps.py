"""Find the steps of a training run in its collectives, and say where their time goes.

A step's collectives are those that a rank makes once in each step: the same operation on the same
tensor. A step lasts from the end of the previous step's last one to the end of its own.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import median

from gradsync.records import Event
from gradsync.reports.timeline import lanes, spans
from gradsync.reports.timeline.lanes import Bar
from gradsync.reports.timeline.spans import Span

GATHER, SCATTER = "all_gather", "reduce_scatter"
WORTH_A_WORD = 0.05  # of a step's time


def steps_of(events: Sequence[Event], world_size: int, count: int) -> list[Span]:
    """Return the times of the steps of rank 0, or [] if it has no collective in each of them.

    Args:
        events: the events of a run.
        world_size: the number of ranks.
        count: the number of steps in the run.
    """
    own = [bar for bar in lanes.bars(events, world_size) if bar.rank == 0 and bar.end is not None]
    times = Counter(map(_kind, own))
    of_steps = [bar for bar in own if times[_kind(bar)] == count]
    seen: Counter[Hashable] = Counter()
    ends = [0.0] * count
    for bar in of_steps:
        place = seen[_kind(bar)]
        ends[place] = max(ends[place], bar.end or 0.0)
        seen[_kind(bar)] += 1
    if not of_steps or ends != sorted(ends):
        return []
    first = min(bar.start for bar in of_steps)
    before = max((bar.end or 0.0 for bar in own if bar.start < first), default=first)
    return list(zip([min(before, first), *ends], ends, strict=False))


def sentences(events: Sequence[Event], world_size: int, steps: Sequence[Span]) -> list[str]:
    """Return what a step takes, the share that ranks wait, for what, and what may hide it."""
    measured = steps[1:] or steps  # the first step also prepares memory
    if not measured:
        return [spans.waiting(events, world_size)]
    length = median(end - start for start, end in measured)
    text = [f"A step takes {length * 1000:.3g} ms."]
    shares = [
        {name: seconds / length for name, seconds in _waits(events, rank, measured).items()}
        for rank in range(world_size)
    ]
    rank = max(range(world_size), key=lambda rank: sum(shares[rank].values()))
    total = sum(shares[rank].values())
    if total < WORTH_A_WORD:
        return [*text, "No rank waits long: communication is hidden behind computation, or short."]
    name, most = max(shares[rank].items(), key=lambda item: item[1])
    what = f"{most:.0%} in {name}" if len(shares[rank]) > 1 else f"all of it in {name}"
    text.append(f"Rank {rank} waits for {total:.0%} of it, {what}.")
    return [*text, _advice(events, world_size, rank, measured, name)]


def _kind(bar: Bar) -> Hashable:
    call = bar.collective
    return call.op, call.label, call.shapes, call.group, call.where


def _named(bar: Bar) -> str:
    """Return a name that is the same in each step: "all_reduce of fc1.weight.grad"."""
    call = bar.collective
    if call.op.startswith((GATHER, SCATTER)):
        return call.op  # of all layers
    elements = sum(map(math.prod, call.shapes))
    return f"{call.op} of {call.label or f'{elements:,} x {call.dtype}'}"


def _within(span: Span, steps: Sequence[Span]) -> bool:
    return any(start <= span[0] < end for start, end in steps)


def _waits(events: Sequence[Event], rank: int, steps: Sequence[Span]) -> Mapping[str, float]:
    """Return how many seconds of a step a rank waits on average, by the collective."""
    world_size = 1 + max(event.rank for event in events)
    calls = {bar.call: bar for bar in lanes.bars(events, world_size) if bar.rank == rank}
    found: dict[str, float] = defaultdict(float)
    for call, (start, end) in spans.waits(events, rank):
        if call in calls and _within((start, end), steps):
            found[_named(calls[call])] += (end - start) / len(steps)
    return found


def _advice(
    events: Sequence[Event], world_size: int, rank: int, steps: Sequence[Span], name: str
) -> str:
    """Return what makes the rank wait, most of all in `name`: a late rank, or communication."""
    bars = lanes.bars(events, world_size)
    waits = dict(spans.waits(events, rank))
    late: dict[int, float] = defaultdict(float)
    sent = hidden = 0.0
    for together in lanes.operations(bars):
        mine = next((bar for bar in together if bar.rank == rank), None)
        if mine is None or mine.end is None or not _within((mine.start, mine.end), steps):
            continue
        start, end = waits.get(mine.call, (mine.end, mine.end))
        last = max(together, key=lambda bar: bar.start)
        late[last.rank] += max(0.0, min(last.start, end) - start)
        sent += end - max(start, min(last.start, end))
        hidden += start - mine.start
    waited = sum(late.values()) + sent
    slowest = max(late, key=lambda other: late[other], default=rank)
    if slowest != rank and late[slowest] > waited / 2:
        return (
            f"Most of this is waiting for rank {slowest}, which arrives later: it has more work, "
            "or less of a core."
        )
    share = hidden / max(hidden + waited, 1e-9)
    hides = f"Computation hides {share:.0%} of the communication" if share > WORTH_A_WORD else ""
    if name.startswith(GATHER):
        better = "gathering a layer's parameters while the layer before it computes"
    elif name.startswith(SCATTER):
        better = "waiting for the sums of gradients after backward, not within it,"
    elif hides:
        better = "sending earlier"
    else:
        better = "sending gradients in buckets, each as soon as backward has computed it,"
    if hides:
        return f"{hides}; {better} hides more."
    return f"Nothing is computed meanwhile; {better} would hide it."
