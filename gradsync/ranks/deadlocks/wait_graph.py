"""Trusted, pure: describe which rank waits for which, in a line for each rank."""

from __future__ import annotations

from gradsync.ranks.deadlocks.calls import Call
from gradsync.ranks.deadlocks.detector import DeadlockDetector
from gradsync.ranks.deadlocks.explanations import numbered_text
from gradsync.text import ranks_text


def wait_graph(detector: DeadlockDetector, world_size: int) -> tuple[str, ...]:
    """Return, for each rank, the ranks it waits for, the call and the line.

    "rank 0 -> rank 1: all_reduce #2 (bias.grad) at train.py:91"
    """
    waits = detector.waits()
    return tuple(_line(rank, waits.get(rank), detector) for rank in range(world_size))


def _line(rank: int, call: Call | None, detector: DeadlockDetector) -> str:
    if rank in detector.over:
        return f"rank {rank} has returned"
    if call is None:
        return f"rank {rank} is running"
    collective = call.collective
    label = f" ({collective.label})" if collective.label else ""
    where = f" at {collective.where}" if collective.where else ""
    others = ranks_text(detector.missing(call) or set(call.operation.calls) - {rank})
    return f"rank {rank} -> {others}: {numbered_text(call)}{label}{where}"
