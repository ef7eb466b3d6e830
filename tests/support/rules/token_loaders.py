"""Mistakes in the batches of tokens that ranks get: which sequences, in which order, how many.

The order of the epoch is known here: any permutation is right, but only one for a seed and an
epoch. A loader for a single rank, with batches of one sequence, yields all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis
from gradsync.text import counted, listed, ranks_text

GUIDE = "A loader that can stop anywhere"
LENGTH = 3  # targets in a row
Batches = list[Any]  # of one rank: [inputs, targets], each a list of rows
Finding = tuple[str, Sequence[int], str]


def expected_batches(
    order: Sequence[int], batch_size: int, world_size: int, start: int = 0
) -> list[list[list[int]]]:
    """Return the numbers of the sequences in each batch of each rank, by the contract."""
    together = batch_size * world_size
    whole = [
        order[first : first + together]
        for first in range(start, len(order) - together + 1, together)
    ]
    return [[list(batch[rank::world_size]) for batch in whole] for rank in range(world_size)]


def numbers_of(batches: Batches) -> list[list[int]]:
    """Return the numbers of the sequences in each batch of a rank."""
    return [[row[0] // 10 for row in inputs] for inputs, _ in batches]


def diagnose_rows(batches: Batches, batch_size: int, rank: int, case: str) -> Diagnosis | None:
    """Return the diagnosis of the shapes and the tokens of a rank's batches."""
    for inputs, targets in batches:
        sizes = {len(inputs), len(targets)}
        widths = {len(row) if isinstance(row, list) else 0 for row in (*inputs, *targets)}
        if sizes != {batch_size} or widths != {LENGTH}:
            code = "unequal-shards" if widths == {LENGTH} and len(sizes) == 1 else "wrong-length"
            text = (
                f"{case}: rank {rank} gets inputs of {len(inputs)} and targets of {len(targets)} "
                f"rows with {listed(sorted(widths))} tokens. Both must have the shape "
                f"({batch_size}, {LENGTH}) in every batch: `batch_size` is the number of sequences "
                "of one rank, and an incomplete global batch is dropped."
            )
            return Diagnosis(code, (rank,), text, guide=GUIDE)
        for row, following in zip(inputs, targets, strict=True):
            first = row[0] // 10 * 10
            if [*row, following[-1]] != [first + k for k in range(LENGTH + 1)] or row[
                1:
            ] != following[:-1]:
                text = (
                    f"{case}: rank {rank} gets the inputs {row} with the targets {following}. In a "
                    "row of L + 1 tokens, the inputs are the first L, and the targets the last L."
                )
                return Diagnosis("tokens-misplaced", (rank,), text, guide=GUIDE)
    return None


def diagnose_batches(
    every: Sequence[Batches],
    order: Sequence[int],
    batch_size: int,
    case: str,
    start: int = 0,
) -> Diagnosis | None:
    """Return the diagnosis of all ranks' batches of an epoch, or of its rest; None if right.

    Args:
        every: the batches of each rank.
        order: the order of the whole epoch.
        batch_size: the number of sequences in a batch of one rank.
        case: what was tried, the beginning of a sentence.
        start: the number of positions that were used before.
    """
    for rank, batches in enumerate(every):
        found = diagnose_rows(batches, batch_size, rank, case)
        if found is not None:
            return found
    seen = [numbers_of(batches) for batches in every]
    right = expected_batches(order, batch_size, len(every), start)
    if seen == right:
        return None
    fresh = expected_batches(order, batch_size, len(every))
    code, ranks, text = _resumed(seen, right, fresh, order[:start]) or _complete(seen, right)
    return Diagnosis(code, tuple(ranks), f"{case}: {text}", guide=GUIDE)


def _resumed(
    seen: list[list[list[int]]],
    right: list[list[list[int]]],
    fresh: list[list[list[int]]],
    before: Sequence[int],
) -> Finding | None:
    """Recognise mistakes in where a resumed pass begins, after the sequences `before`."""
    if not before:
        return None
    everyone = range(len(seen))
    begun = [rank for rank in everyone if seen[rank] and seen[rank][:1] == fresh[rank][:1]]
    if begun:
        return (
            "resume-lost",
            begun,
            f"on {ranks_text(begun)}, the pass begins at the start of the epoch again. "
            "`load_state_dict` must restore the epoch and the position, and setting the same epoch "
            "must not reset it.",
        )
    used = {number for batches in seen for batch in batches for number in batch}
    wanted = {number for batches in right for batch in batches for number in batch}
    again = sorted(used & set(before))
    if again:
        return (
            "samples-repeated",
            everyone,
            f"{counted(len(again), 'sequence')} of the epoch {'is' if len(again) == 1 else 'are'} "
            f"used again, for example {again[0]}. The position must count the sequences of all "
            "ranks together, including the batch that was yielded last.",
        )
    missing = sorted(wanted - used)
    if missing:
        return (
            "samples-missing",
            everyone,
            f"{counted(len(missing), 'sequence')} of the rest of the epoch never "
            f"{'comes' if len(missing) == 1 else 'come'}, for example {missing[0]}. The position "
            "must count the sequences that were yielded, not more.",
        )
    return None


def _complete(seen: list[list[list[int]]], right: list[list[list[int]]]) -> Finding:
    """Recognise mistakes in how global batches are shared."""
    flat = [[number for batch in batches for number in batch] for batches in seen]
    everyone = range(len(seen))
    if len(seen) > 1 and flat[0] and all(own == flat[0] for own in flat):
        return "same-shard-on-every-rank", everyone, "all ranks get the same sequences."
    short = [rank for rank in everyone if len(seen[rank]) < len(right[rank])]
    if short:
        return (
            "samples-missing",
            short,
            f"{ranks_text(short)} get {len(seen[short[0]])} of "
            f"{counted(len(right[short[0]]), 'batch', 'batches')}. Only a global batch that is not "
            "complete is dropped.",
        )
    long = [rank for rank in everyone if len(seen[rank]) > len(right[rank])]
    if long:
        return (
            "unequal-shards",
            long,
            f"{ranks_text(long)} get {len(seen[long[0]])} batches, but there are only "
            f"{counted(len(right[long[0]]), 'whole global batch', 'whole global batches')}. A "
            "rank with one batch more would wait for the others forever.",
        )
    together = [
        sorted(number for rank in everyone for number in seen[rank][b])
        for b in range(len(right[0]))
    ]
    wanted = [
        sorted(number for rank in everyone for number in right[rank][b])
        for b in range(len(right[0]))
    ]
    if together == wanted:
        return (
            "not-strided",
            everyone,
            f"in the first global batch, the ranks get {[batches[0] for batches in seen]}, but "
            f"should get {[batches[0] for batches in right]}: rank r takes the positions r, r + N, "
            "... of the global batch.",
        )
    if any(len(set(own)) < len(own) for own in flat):
        text = "some sequences are used more than once in an epoch."
        return "samples-repeated", everyone, text
    return (
        "shuffle-differs-across-ranks",
        everyone,
        "the ranks' orders of the epoch are not that of a single rank with the same seed. The "
        "permutation must depend on the seed and the epoch only, and global batch b must have the "
        "positions b * N * batch_size and following.",
    )
