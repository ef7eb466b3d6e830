"""Count the bytes that ranks send, and diagnose ranks that send too many."""

from __future__ import annotations

from gradsync.ranks.deadlocks.calls import bytes_of
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.text import listed, ranks_text, verb

MARKER = "new_group"  # called by a probe before the collectives to count


def bytes_by_rank(seen: Observation) -> list[int]:
    """Return how many bytes each rank sends in collectives, after the probe's marker if it has one.

    Received bytes do not count, even if the receiver passes a buffer to the collective.
    """
    sent = []
    for rank in range(seen.world_size):
        calls = seen.collectives(rank)
        start = max([i for i, call in enumerate(calls) if call.op == MARKER], default=-1)
        given = [call for call in calls[start + 1 :] if _gives(call, rank)]
        sent.append(sum(map(bytes_of, given)))
    return sent


def _gives(call: Collective, rank: int) -> bool:
    """Return whether a rank's tensor is data that it sends, not a buffer to receive into."""
    return call.op != "recv" and (call.op not in ("broadcast", "scatter") or call.root == rank)


def too_many_bytes(seen: Observation, limit: int, text: str, guide: str) -> Diagnosis | None:
    """Return the diagnosis if a rank sends `limit` bytes or more in collectives.

    Args:
        seen: the run.
        limit: the smallest number of bytes that is too many for a rank.
        text: one or more sentences about the data that should not be sent.
        guide: the heading of GUIDELINES.md to read.
    """
    sent = bytes_by_rank(seen)
    ranks = tuple(rank for rank, size in enumerate(sent) if size >= limit)
    if not ranks:
        return None
    lines = [
        call.where
        for rank in ranks
        for call in sorted(seen.collectives(rank), key=bytes_of)
        if call.where is not None
    ]
    everyone = ranks_text(range(seen.world_size))
    numbers = [f"{size:,}" for size in sent]
    same = f"{numbers[0]} bytes" + " each" * (len(sent) > 1)
    sizes = same if len(set(numbers)) == 1 else f"{listed(numbers)} bytes"
    text = f"{everyone.capitalize()} {verb(sent, 'sends', 'send')} {sizes} in collectives. {text}"
    return Diagnosis("too-many-bytes", ranks, text, lines[-1] if lines else None, guide)
