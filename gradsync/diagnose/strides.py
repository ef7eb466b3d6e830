"""Mistakes in dealing out an epoch, or what is left of one, like cards. Shares: a list a rank.

The epoch's order is known here. A submission may draw any permutation, but only one for a seed and
an epoch: what a single rank gets is the whole of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gradsync.diagnose.shares import Finding, Shares, look_at_counts, repeated, some
from gradsync.records import Diagnosis
from gradsync.text import counted

GUIDE = "Resumable shares"
COUNTED = "`samples_seen` counts positions of the global order, that of all ranks together"
OTHER_ORDER = (
    "What the ranks go through are no neighbours in this epoch's order, so that order is another: "
    "`resume` sets the epoch, too, and what is left is cut from the order of all samples, which is "
    "shuffled before, by the seed and the epoch alone"
)


def strides(order: Sequence[int], world_size: int, drop_last: bool = False) -> list[list[int]]:
    """Return each rank's share of an order, by the contract: dealt out, padded or cut."""
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
    """Return what is wrong with the ranks' shares of an epoch or of its rest, None if nothing is.

    Args:
        shares: the indices of each rank.
        order: the whole epoch's, before padding: a permutation of 0..M-1.
        seen: how many of its first positions had been seen before.
        drop_last: what does not fill a row of N is cut, not padded.
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
    """Look at how much the ranks get of a rest, or of an order that is cut, and which samples."""
    every, rest = range(len(shares)), order[seen:]
    wanted = rows_of(len(rest), len(shares), drop_last)
    lengths = [len(share) for share in shares]
    if len(set(lengths)) > 1:
        text = (
            f"by rank they get {', '.join(map(str, lengths))} indices. A rank with fewer batches "
            "leaves the collectives early, and the others wait for ever"
        )
        return "unequal-shards", [r for r in every if lengths[r] != wanted], text
    if lengths[0] and len(shares) > 1 < len(rest) and all(s == shares[0] for s in shares):
        text = f"every rank gets the same indices, {some(shares[0])}"
        return "same-shard-on-every-rank", every, text
    if seen and _is_anew(shares, order, drop_last):
        text = (
            f"the epoch starts anew, with {some(shares[0])} on rank 0: where training had come to "
            "is lost"
        )
        return "resume-lost", every, text
    again = sorted(set(order[:seen]) & set(_dealt(shares)[: len(rest)]))
    if again:
        text = f"{_come(again)} again, although seen before the interruption. "
        text += OTHER_ORDER if _in_another_order(shares, order, len(rest)) else COUNTED
        return "samples-repeated", [r for r in every if set(shares[r]) & set(again)], text
    return _look_for_missing(shares, rest, lengths[0], wanted, drop_last)


def _look_for_missing(
    shares: Shares, rest: Sequence[int], rows: int, wanted: int, drop_last: bool
) -> Finding | None:
    every = range(len(shares))
    missing = sorted(set(rest) - set(_dealt(shares)))
    if missing and not drop_last:
        text = f"no rank gets {some(missing)}, which had not been seen before"
        return "samples-missing", every, text
    if rows < wanted:
        gets = counted(rows, "index", "indices")
        text = f"every rank gets {gets}, but there are enough left for more on each rank"
        return "samples-missing", every, text
    if rows > wanted:
        cut = ". With `drop_last`, what does not fill a row of N is cut" if drop_last else ""
        there = "more than there are to share out" if rest else "and nothing is left to share out"
        text = f"every rank gets {counted(rows, 'index', 'indices')}, {there}{cut}"
        return "wrong-length", every, text
    return None


def _look_at_order(shares: Shares, rest: Sequence[int], seen: int) -> Finding:
    """Say what is wrong where counts and lengths are right."""
    every = range(len(shares))
    dealt = _dealt(shares)
    start = dealt[: len(rest)]
    if start == list(rest)[: len(dealt)]:
        what = "what is left is padded" if seen else "the order is padded"
        padding = dealt[len(rest) :]
        text = (
            f"{what} with {some(padding)}. Its padding is its own beginning"
            f"{', not that of the whole epoch' * (seen > 0)}"
        )
        wrong = [p % len(shares) for p in range(len(rest), len(dealt))]
        return "padding-wrong", sorted(set(wrong)), text
    joined = [index for share in shares for index in share]
    if joined[: len(rest)] == list(rest)[: len(joined)]:
        text = (
            f"rank 0 gets {some(shares[0])}, a chunk of neighbours in the epoch's order. Here "
            f"rank r takes every N-th position, from r on (N is {len(shares)})"
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
            f"rank 0's share is {some(sorted(shares[0]))}, in some order: what is shuffled is each "
            "share by itself. The permutation of all samples comes first, then the strides"
        )
        return "shuffle-differs-across-ranks", every, text
    if shuffled and sorted(start) == list(range(len(start))) and len(start) < len(rest):
        text = (
            "what is cut is always the same, the end of the dataset: those samples never come. "
            "The permutation is one of all samples, and its end is cut"
        )
        return "samples-missing", every, text
    if len(set(start)) == len(start) and set(start) <= set(rest):
        if not shuffled:
            text = f"`shuffle` is off, but together the ranks go through {some(start)}"
            return "not-strided", every, text
        text = (
            "the ranks go through another permutation than one rank alone does. Only the seed and "
            "the epoch decide it: not the world size, not `drop_last` and not what has been seen"
        )
        return "shuffle-differs-across-ranks", every, text
    twice = repeated(start)
    text = f"{_come(twice)} twice before every sample has come once"
    if not padded:
        return "samples-repeated", every, text
    return "padding-wrong", every, f"{text}. The padding comes at the end"


def _is_anew(shares: Shares, order: Sequence[int], drop_last: bool) -> bool:
    """Tell whether these are the shares of the whole epoch."""
    rows = rows_of(len(order), len(shares), drop_last)
    starts = _dealt(shares)[: len(order)] == list(order)[: rows * len(shares)]
    return bool(rows) and len(shares[0]) == rows and starts


def _in_another_order(shares: Shares, order: Sequence[int], count: int) -> bool:
    """Tell whether what is shared out, in any way, is no run of neighbours in the order."""
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
    """Return the order that shares of one length were dealt from, padding and all."""
    return [share[row] for row in range(len(shares[0])) for share in shares]


def _come(indices: Sequence[int]) -> str:
    return f"{some(indices)} {'comes' if len(indices) == 1 else 'come'}"
