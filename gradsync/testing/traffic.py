"""Check which collectives ranks call, and count the bytes that they send."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence

from gradsync.ranks.deadlocks.calls import EXCHANGES, SETUP, bytes_of, numel
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.text import listed, ranks_text, verb

MARKER = "new_group"  # called by a probe before the collectives to count


def assert_collectives(seen: Observation, rank: int, expected: Sequence[str]) -> None:
    """Check that a rank called exactly these collectives, in this order.

    Args:
        seen: the run.
        rank: the rank.
        expected: the names in `torch.distributed`, such as "all_gather_into_tensor".

    Raises:
        AssertionError: it called others; the message shows the difference, with lines.
    """
    __tracebackhide__ = True
    calls = traffic(seen, rank)
    matcher = difflib.SequenceMatcher(None, expected, [call.op for call in calls], autojunk=False)
    lines = []
    for kind, start, end, first, last in matcher.get_opcodes():
        if kind == "equal":
            lines += [f"    {_described(call)}" for call in calls[first:last]]
        else:
            lines += [f"  - {op}" for op in expected[start:end]]
            lines += [f"  + {_described(call)}" for call in calls[first:last]]
    if list(expected) != [call.op for call in calls]:
        head = (
            f"Rank {rank} did not call the expected collectives (- is missing, + is not expected):"
        )
        raise AssertionError("\n".join([head, *lines]))


def assert_no(seen: Observation, op: str, ranks: Iterable[int] | None = None) -> None:
    """Check that no rank, or none of these, called a collective: `assert_no(seen, "all_gather")`.

    The name is exact: this allows `all_gather_into_tensor`.

    Raises:
        AssertionError: a rank called it; the message shows each line.
        ValueError: no collective is recorded under this name, so the check could not fail.
    """
    __tracebackhide__ = True
    if op not in EXCHANGES:
        raise ValueError(f"op must be one of {', '.join(sorted(EXCHANGES))}, got {op!r}")
    where: dict[str, set[int]] = {}
    for rank in range(seen.world_size) if ranks is None else ranks:
        for call in traffic(seen, rank):
            if call.op == op:
                where.setdefault(_described(call), set()).add(rank)
    if where:
        lines = [f"  {ranks_text(ranks)}: {text}" for text, ranks in where.items()]
        raise AssertionError("\n".join([f"No rank should call {op}:", *lines]))


def traffic(seen: Observation, rank: int) -> list[Collective]:
    """Return the calls of a rank that exchange data, in order."""
    return [call for call in seen.collectives(rank) if call.op not in SETUP]


def bytes_by_op(seen: Observation, rank: int) -> dict[str, int]:
    """Return how many bytes of its tensors a rank sends with each operation."""
    sent: Counter[str] = Counter()
    for call in traffic(seen, rank):
        sent[call.op] += bytes_of(call) if _gives(call, rank) else 0
    return dict(sent)


def bytes_by_group(seen: Observation, rank: int) -> dict[tuple[int, ...], int]:
    """Return how many bytes of its tensors a rank sends in the groups with these members."""
    sent: Counter[tuple[int, ...]] = Counter()
    for call in traffic(seen, rank):
        sent[call.members] += bytes_of(call) if _gives(call, rank) else 0
    return dict(sent)


def _described(call: Collective) -> str:
    """Return "all_reduce (fc2.bias.grad, 10 x float32), at train.py:91"."""
    size = f"{numel(call)} x {call.dtype}" if call.dtype else ""
    details = ", ".join(filter(None, (call.label, size)))
    return call.op + (f" ({details})" * bool(details)) + (f", at {call.where}" * bool(call.where))


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
