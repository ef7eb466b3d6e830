"""Mistakes in a ring all-reduce: its calls, and what its wrong elements are made of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsync.records import Collective, Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.traffic import bytes_by_rank
from gradsync.testing.values import close, precision
from gradsync.text import counted, listed, ranks_text, verb
from support.rules.wrong_results import ends_with

GUIDE = "The ring"
Call = tuple[int, int, Collective]  # the rank, which of its calls, and what it is
Counts = tuple[int, ...]  # by rank: how often its part is in a sum
MOST_TERMS = 2  # a part that is added three times is not looked for
ALLOWED = ("send", "recv", "new_group")  # creating a group moves no data


def needs_no_other_rank(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a single rank that fails: it has no other rank to send to, and nothing to add."""
    failure = seen.failure
    if failure is None or seen.world_size > 1 or failure.status not in ("error", "deadlock"):
        return None
    found = failure.diagnosis
    advice = "With one rank, the tensor is already the sum: return without communication."
    return replace(found, explanation=f"{found.explanation} {advice}")


def not_point_to_point(seen: Observation) -> Diagnosis | None:
    """Recognise ranks that move data with other calls than sends and receives."""
    others = {
        rank: [call for call in seen.collectives(rank) if call.op not in ALLOWED]
        for rank in range(seen.world_size)
    }
    guilty = tuple(rank for rank, calls in others.items() if calls)
    if not guilty:
        return None
    first = others[guilty[0]][0]
    text = (
        f"ring_all_reduce calls {first.op} at {first.where}. In this exercise, build the sum from "
        "only sends and receives."
    )
    return Diagnosis("forbidden-shortcut", guilty, text, first.where, GUIDE)


def receives_not_awaited(seen: Observation) -> Diagnosis | None:
    """Recognise a rank that does not wait for a receive, so that the sum is a race."""
    why = "The sum is a race: the data may not have arrived when it is used."
    return _not_ended(seen, _started(seen, "recv"), why)


def sends_not_awaited(seen: Observation) -> Diagnosis | None:
    """Recognise a rank that does not wait for its last send to a rank, and so for all before it."""
    last = {(rank, call.peer): (number, call) for rank, number, call in _started(seen, "send")}
    calls = [(rank, *call) for (rank, _), call in last.items()]
    why = "It may still read the tensor after ring_all_reduce returns, when the caller changes it."
    return _not_ended(seen, calls, why)


def _started(seen: Observation, op: str) -> list[Call]:
    """Return all calls of one operation, in order on each rank."""
    return [
        (event.rank, event.call, event.collective)
        for event in seen.events
        if event.collective is not None and event.collective.op == op
    ]


def _not_ended(seen: Observation, calls: Sequence[Call], why: str) -> Diagnosis | None:
    ended = {(event.rank, event.call) for event in seen.events if event.kind == "exit"}
    open_ones = [call for call in calls if call[:2] not in ended]
    if not open_ones:
        return None
    first = open_ones[0][-1]
    text = (
        f"ring_all_reduce never waits for the {first.op} that starts at {first.where}. {why} Wait "
        "for it before you return."
    )
    ranks = tuple(sorted({rank for rank, *_ in open_ones}))
    return Diagnosis("no-rank-waits", ranks, text, first.where, GUIDE)


def too_much_sent(seen: Observation, size: int, itemsize: int = 4) -> Diagnosis | None:
    """Recognise ranks that send more than 2(N-1) chunks of a tensor of `size` elements."""
    world_size, sent = seen.world_size, bytes_by_rank(seen)
    chunk = math.ceil(size / world_size)
    most = 2 * (world_size - 1) * chunk * itemsize
    guilty = tuple(rank for rank, number in enumerate(sent) if number > most)
    if not guilty:
        return None
    text = (
        f"For a tensor of {size} elements ({size * itemsize} bytes) on {world_size} ranks, the "
        f"ranks send {listed(sent)} bytes. In a ring, every rank sends {2 * (world_size - 1)} "
        f"chunks of at most {counted(chunk, 'element')}: {world_size - 1} in each pass, {most} "
        "bytes in all."
    )
    return Diagnosis("too-many-bytes", guilty, text, guide=GUIDE)


def ring_mistakes(tensors: Sequence[NDArray[Any]]) -> list[Rule]:
    """Return the rules for tensors that do not become the sum, given all parts of each of them.

    Args:
        tensors: arrays (rank, ...), which the ranks sum in turn.
    """
    world_size = len(tensors[0])
    if world_size == 1:
        return []
    own = [[parts[rank] for parts in tensors] for rank in range(world_size)]
    means = [parts.sum(0) / world_size for parts in tensors]
    return [
        ends_with(
            own,
            "gradients-not-synchronised",
            "Every rank's `tensor` is unchanged. Write the sum into `tensor` itself, not into a "
            "copy.",
            GUIDE,
        ),
        ends_with(
            [means] * world_size,
            "divided-twice",
            "Every rank has the mean over the ranks. ring_all_reduce must compute the sum.",
            GUIDE,
        ),
        _wrong_chunk(tensors),
    ]


def _wrong_chunk(tensors: Sequence[NDArray[Any]]) -> Rule:
    """Return the rule that says which ranks' parts the first wrong chunk lacks, or has twice."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        ranks = tuple(r for r in range(len(seen)) if not close(seen[r], expected[r]))
        for rank, number in itertools.product(ranks, range(len(tensors))):
            value, parts = np.asarray(seen[rank][number]), tensors[number]
            if value.shape == parts.shape[1:] and not close(seen[rank][number], parts.sum(0)):
                text = _composition(rank, value.reshape(-1), parts.reshape(len(parts), -1))
                return Diagnosis("wrong-chunk", ranks, text, guide=GUIDE)
        return None

    return rule


def _composition(rank: int, values: NDArray[Any], parts: NDArray[Any]) -> str:
    """Describe the first chunk with wrong elements on a rank."""
    world_size, size = parts.shape
    counts = _counts(values, parts)
    wrong = [index for index in range(size) if counts[index] != (1,) * world_size]
    first = last = wrong[0] if wrong else 0
    chunks = enumerate(np.array_split(np.arange(size), world_size))
    number, chunk = next((n, chunk) for n, chunk in chunks if first in chunk)
    while last + 1 in chunk and counts[last + 1] == counts[first]:
        last += 1
    where = f"elements {first} to {last}" if last > first else f"element {first}"
    return (
        f"On rank {rank} of {world_size}, {len(wrong)} of {size} elements are not the sum over the "
        f"ranks. Chunk {number} ({where}) {_what(counts[first])}"
    )


def _what(found: Counts | None) -> str:
    if found is None:
        return (
            "is no sum of the ranks' parts of that chunk. Either another chunk was added or "
            "copied there, or the data had not arrived when it was used."
        )
    if sum(found) == 1:
        return (
            f"is only rank {found.index(1)}'s part. Every element belongs to a chunk, also if N "
            "does not divide their number. In the first pass, add each chunk that arrives; in the "
            "second, copy the chunks that are complete."
        )
    lacking = [rank for rank, count in enumerate(found) if count == 0]
    twice = [rank for rank, count in enumerate(found) if count > 1]
    whose = " and ".join(
        f"{what} the {verb(which, 'part', 'parts')} of {ranks_text(which)}{often}"
        for what, which, often in (("lacks", lacking, ""), ("contains", twice, " twice"))
        if which
    )
    return (
        f"{whose}. Follow it around the ring: in the first pass, each rank must add its part once, "
        "and in the second, the complete sum must reach every rank."
    )


def _counts(values: NDArray[Any], parts: NDArray[Any]) -> list[Counts | None]:
    """Return, for each element, how often each rank's part is in it; None if it is no such sum."""
    exact = np.issubdtype(parts.dtype, np.integer)
    found: list[Counts | None] = [None] * len(values)
    # The likeliest first: 1 for each rank, then sums in which fewer counts differ from it.
    candidates = itertools.product(range(MOST_TERMS + 1), repeat=len(parts))
    for counts in sorted(candidates, key=lambda row: sum(count != 1 for count in row)):
        total = sum(count * part for count, part in zip(counts, parts, strict=True))
        scale = np.abs(parts).sum(0).max() if len(values) else 0
        tolerance = 0 if exact else 64 * precision(parts) * scale
        for index in np.flatnonzero(np.abs(values - total) <= tolerance):
            found[index] = found[index] or counts
    return found
