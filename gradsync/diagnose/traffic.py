"""How much ranks put into collectives, and what of it is too much."""

from __future__ import annotations

from gradsync.ranks.calls import bytes_of
from gradsync.records import Collective, Diagnosis, Observation

MARKER = "new_group"  # what a probe calls before that which is measured


def bytes_by_rank(seen: Observation) -> list[int]:
    """Return what each rank put into collectives in all, after the probe's marker if it set one.

    What is received counts as nothing, also where a receiver has to enter with a buffer.
    """
    sent = []
    for rank in range(seen.world_size):
        calls = seen.collectives(rank)
        start = max([i for i, call in enumerate(calls) if call.op == MARKER], default=-1)
        given = [call for call in calls[start + 1 :] if _gives(call, rank)]
        sent.append(sum(map(bytes_of, given)))
    return sent


def _gives(call: Collective, rank: int) -> bool:
    """Tell whether what a rank put in is data of its own, not a place for another's."""
    return call.op != "recv" and (call.op not in ("broadcast", "scatter") or call.root == rank)


def too_many_bytes(seen: Observation, limit: int, text: str, guide: str) -> Diagnosis | None:
    """Return the diagnosis if a rank put `limit` bytes or more into collectives.

    Args:
        seen: the run.
        limit: how much is too much, on any rank.
        text: what travels that should not; after it, the guide's heading is named.
        guide: that heading.
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
    told = f"by rank, {', '.join(map(str, sent))} bytes go into collectives: {text}"
    where = lines[-1] if lines else None
    return Diagnosis("too-many-bytes", ranks, f"{told}", where, guide)
