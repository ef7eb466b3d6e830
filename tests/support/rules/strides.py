"""Mistakes in strided shares of an epoch, or of the rest of one. Shares are one list per rank.

The order of the epoch is known here: a submission may use any permutation, but only one for each
seed and epoch, and a single rank gets all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gradsync.records import Diagnosis
from gradsync.text import counted, listed, verb
from support.rules.shares import Finding, Shares, look_at_counts, repeated, some

GUIDE = "Resumable shares"
COUNTED = "`samples_seen` counts positions in the global order, over all ranks together."
OTHER_ORDER = (
    "Together, the shares are not a consecutive part of this epoch's order: the order differs. "
    "`resume` must also set the epoch. First shuffle all samples, by the seed and the epoch only, "
    "and then skip the samples that were seen."
)


def strides(order: Sequence[int], world_size: int, drop_last: bool = False) -> list[list[int]]:
    """Return each rank's share of an order, as the contract defines it: padded, or cut."""
    rows = rows_of(len(order), world_size, drop_last)
    return [
        [order[(row * world_size + rank) % len(order)] for row in range(rows)]
        for rank in range(world_size)
    ]


def rows_of(count: int, world_size: int, drop_last: bool = False) -> int:
    """Return how many of `count` positions each rank gets."""
    return count // world_size if drop_last else -(-count // world_size)


def diagnose_strides(
    shares: Shares, order: Sequence[int], *, seen: int = 0, drop_last: bool = False
) -> Diagnosis | None:
    """Return the diagnosis of the ranks' shares of an epoch or of its rest, None if they are right.

    Args:
        shares: the indices of each rank.
        order: the order of the complete epoch before padding: a permutation of 0..M-1.
        seen: the number of its first positions that were seen before.
        drop_last: whether an incomplete last row of N positions is cut instead of padded.
    """
    if [list(share) for share in shares] == strides(order[seen:], len(shares), drop_last):
        return None
    if seen or drop_last:
        finding = _look_at_rows(shares, order, seen, drop_last)
    else:
        finding = look_at_counts(shares, len(order), list(order) != sorted(order))
    code, ranks, text = finding or _look_at_order(shares, order[seen:], seen)
    dropped = " with `drop_last`" * drop_last
    resumed = f", resumed after {seen} positions" * (seen > 0)
    case = f"{len(order)} samples on {len(shares)} ranks{dropped}{resumed}"
    return Diagnosis(code, tuple(ranks), f"{case}: {text}", guide=GUIDE)


def _look_at_rows(
    shares: Shares, order: Sequence[int], seen: int, drop_last: bool
) -> Finding | None:
    """Check the number of indices and the samples, for a rest or for an order that is cut."""
    every, rest = range(len(shares)), order[seen:]
    wanted = rows_of(len(rest), len(shares), drop_last)
    lengths = [len(share) for share in shares]
    if len(set(lengths)) > 1:
        text = (
            f"the ranks get {listed(lengths)} indices. All must get the same number: a rank with "
            "fewer batches finishes early, and then the others wait for it in a collective."
        )
        return "unequal-shards", [r for r in every if lengths[r] != wanted], text
    if lengths[0] and len(shares) > 1 < len(rest) and all(s == shares[0] for s in shares):
        text = f"every rank gets the same indices, {some(shares[0])}. The shares must not overlap."
        return "same-shard-on-every-rank", every, text
    if seen and _are_of_whole_epoch(shares, order, drop_last):
        text = (
            f"the epoch starts again from its beginning, with {some(shares[0])} on rank 0. It must "
            "continue after the positions that were seen."
        )
        return "resume-lost", every, text
    again = sorted(set(order[:seen]) & set(_dealt(shares)[: len(rest)]))
    if again:
        were = verb(again, "it was", "they were")
        text = f"{_come(again)} again, although {were} seen before the interruption. "
        text += OTHER_ORDER if _in_another_order(shares, order, len(rest)) else COUNTED
        return "samples-repeated", [r for r in every if set(shares[r]) & set(again)], text
    return _look_for_missing(shares, rest, seen, wanted, drop_last)


def _look_for_missing(
    shares: Shares, rest: Sequence[int], seen: int, wanted: int, drop_last: bool
) -> Finding | None:
    every, rows = range(len(shares)), len(shares[0])
    missing = sorted(set(rest) - set(_dealt(shares)))
    if missing and not drop_last:
        was = verb(missing, "it was", "they were")
        text = (
            f"no rank gets {some(missing)}, although {was} not used before the interruption. "
            f"Divide all samples after the first {counted(seen, 'position')} among the ranks."
        )
        return "samples-missing", every, text
    if rows < wanted:
        gets = counted(rows, "index", "indices")
        text = f"every rank gets {gets}, but enough samples remain for {wanted} on each rank."
        return "samples-missing", every, text
    if rows > wanted:
        cut = " With `drop_last`, an incomplete last row of N positions is cut." * drop_last
        there = "but fewer remain for each rank" if rest else "but no samples remain"
        text = f"every rank gets {counted(rows, 'index', 'indices')}, {there}.{cut}"
        return "wrong-length", every, text
    return None


def _look_at_order(shares: Shares, rest: Sequence[int], seen: int) -> Finding:
    """Return the mistake of shares whose counts and lengths are right."""
    every = range(len(shares))
    dealt = _dealt(shares)
    start = dealt[: len(rest)]
    if start == list(rest)[: len(dealt)]:
        what = "rest" if seen else "order"
        padding = dealt[len(rest) :]
        text = (
            f"the {what} is padded with {some(padding)}. Pad it with its own beginning"
            f"{', not with the beginning of the epoch' * (seen > 0)}."
        )
        wrong = [p % len(shares) for p in range(len(rest), len(dealt))]
        return "padding-wrong", sorted(set(wrong)), text
    joined = [index for share in shares for index in share]
    if joined[: len(rest)] == list(rest)[: len(joined)]:
        text = (
            f"rank 0 gets {some(shares[0])}, a contiguous chunk of the epoch's order. Rank r must "
            f"take every N-th position, starting at r (here N is {len(shares)})."
        )
        return "not-strided", every, text
    return _why_another_order(shares, rest, start, padded=len(dealt) > len(rest))


def _why_another_order(
    shares: Shares, rest: Sequence[int], start: list[int], *, padded: bool
) -> Finding:
    every = range(len(shares))
    shuffled = list(rest) != sorted(rest)
    if shuffled and [sorted(share) for share in shares] == [
        sorted(share) for share in strides(sorted(rest), len(shares))
    ]:
        text = (
            f"rank 0 gets {some(sorted(shares[0]))}, in some order: each share is shuffled "
            "separately. Permute all samples first, and then take the strides."
        )
        return "shuffle-differs-across-ranks", every, text
    if shuffled and sorted(start) == list(range(len(start))) and len(start) < len(rest):
        text = (
            "the samples that are cut are always the last of the dataset, so they are never used. "
            "Permute all samples first, and then cut the end of the permutation."
        )
        return "samples-missing", every, text
    if len(set(start)) == len(start) and set(start) <= set(rest):
        if not shuffled:
            text = f"`shuffle` is off, but the order of all ranks together is {some(start)}."
            return "not-strided", every, text
        text = (
            "the permutation differs from the permutation of a single rank. It must depend only "
            "on the seed and the epoch: not on the world size, `drop_last` or the samples seen."
        )
        return "shuffle-differs-across-ranks", every, text
    twice = repeated(start)
    text = f"{_come(twice)} again before every sample has come once."
    if not padded:
        return "samples-repeated", every, text
    return "padding-wrong", every, f"{text} The padding must be at the end."


def _are_of_whole_epoch(shares: Shares, order: Sequence[int], drop_last: bool) -> bool:
    """Return whether these are the shares of the complete epoch."""
    rows = rows_of(len(order), len(shares), drop_last)
    starts = _dealt(shares)[: len(order)] == list(order)[: rows * len(shares)]
    return bool(rows) and len(shares[0]) == rows and starts


def _in_another_order(shares: Shares, order: Sequence[int], count: int) -> bool:
    """Return whether the shares, joined in any way, are not consecutive in the order."""
    place = {index: position for position, index in enumerate(order)}
    joined = [index for share in shares for index in share]
    if list(order) == sorted(order) or not place.keys() >= set(joined):
        return False
    ways = [[_dealt(shares)[:count]], [joined[:count]], shares]
    return not any(
        all((place[b] - place[a]) % len(order) == 1 for part in way for a, b in pairwise(part))
        for way in ways
    )


def _dealt(shares: Shares) -> list[int]:
    """Return the padded order that strided shares of equal length were taken from."""
    return [share[row] for row in range(len(shares[0])) for share in shares]


def _come(indices: Sequence[int]) -> str:
    return f"{some(indices)} {verb(indices, 'comes', 'come')}"
