"""Mistakes in sharing out a dataset. Shares are lists of indices, one a rank."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from gradsync.records import Diagnosis
from gradsync.text import counted

GUIDE = "Data distribution"
SHOWN = 12  # indices of a share that an explanation shows

Shares = Sequence[Sequence[int]]
Finding = tuple[str, Sequence[int], str]  # a code, ranks, and what shows it


def diagnose_shares(
    shares: Shares, num_samples: int, shuffle: bool, shortcut: bool = False
) -> Diagnosis | None:
    """Return what is wrong with the ranks' shares of one epoch, None if nothing is.

    The order itself is the submission's own: with `shuffle` any permutation will do. What is
    known of it is that all shares together are it, padded at its end with its own beginning.

    Args:
        shares: the indices of each rank.
        num_samples: M.
        shuffle: whether the order may be any permutation, or is 0..M-1.
        shortcut: the shares came from torch's own sampler.
    """
    finding = look_at_counts(shares, num_samples, shuffle)
    finding = finding or _look_at_order(shares, num_samples, shuffle)
    if finding is None:
        return None
    code, ranks, text = finding
    if shortcut:
        code = "forbidden-shortcut"
        text += ". That is torch's DistributedSampler: to write one is the exercise"
    case = f"{counted(num_samples, 'sample')} on {counted(len(shares), 'rank')}"
    return Diagnosis(code, tuple(ranks), f"{case}: {text}", guide=GUIDE)


def look_at_counts(shares: Shares, num_samples: int, shuffle: bool) -> Finding | None:
    """Look at how many indices the ranks get, and which."""
    every = range(len(shares))
    wanted = math.ceil(num_samples / len(shares))
    lengths = [len(share) for share in shares]
    if len(set(lengths)) > 1:
        text = (
            f"by rank they get {', '.join(map(str, lengths))} indices. A rank with fewer batches "
            "leaves the collectives early, and the others wait for ever. The order is padded "
            "until all ranks have equally many"
        )
        return "unequal-shards", [r for r in every if lengths[r] != wanted], text
    if _all_alike(shares, num_samples):
        text = (
            f"every rank gets the same indices, {some(shares[0])}. They all do the same work: "
            "what a rank takes has to depend on its rank"
        )
        return "same-shard-on-every-rank", every, text
    together = {index for share in shares for index in share}
    strangers = sorted(i for i in together if not 0 <= i < num_samples)
    missing = sorted(set(range(num_samples)) - together)
    if missing:
        return _why_missing(shares, missing, strangers, wanted, shuffle)
    if strangers:
        text = (
            f"{_are(strangers)} no index of the dataset, whose last is {num_samples - 1}. The "
            "padding is the order's own beginning"
        )
        return "padding-wrong", [r for r in every if set(shares[r]) & set(strangers)], text
    if lengths[0] != wanted:
        gets = counted(lengths[0], "index", "indices")
        enough = f"{wanted} {'is' if wanted == 1 else 'are'} enough"
        text = f"every rank gets {gets}, where {enough} to cover all"
        return "wrong-length", every, text
    return None


def _why_missing(
    shares: Shares, missing: list[int], strangers: list[int], wanted: int, shuffle: bool
) -> Finding:
    every = range(len(shares))
    text = f"no rank gets {some(missing)}"
    if strangers:
        text += f", while {_are(strangers)} no index of the dataset. Indices count from 0"
        return "samples-missing", every, text
    if shuffle and all(len(share) == len(set(share)) == wanted for share in shares):
        both = [(a, b) for b in every for a in range(b) if set(shares[a]) & set(shares[b])]
        if both:
            a, b = both[0]
            text += f", ranks {a} and {b} both get {some(sorted(set(shares[a]) & set(shares[b])))}"
        text += (
            ", and yet the counts are right: the ranks do not cut one and the same permutation. "
            "Nothing but the seed and the epoch may decide it"
        )
        return "shuffle-differs-across-ranks", every, text
    return "samples-missing", every, f"{text}. Every sample belongs to some rank"


def _look_at_order(shares: Shares, num_samples: int, shuffle: bool) -> Finding | None:
    """Look at where the indices lie, when there are as many as there should be."""
    together = [index for share in shares for index in share]
    order, padding = together[:num_samples], together[num_samples:]
    beginning = [order[k % num_samples] for k in range(len(padding))]
    is_order = _is_order(order, shuffle)
    if is_order and padding == beginning:
        return None
    if shuffle and _was_cut_first(shares, num_samples):
        text = (
            f"rank 0's share is {some(sorted(shares[0]))}, in some order: what is shuffled is each "
            "share by itself. The permutation of all samples comes first, and then the cut"
        )
        return "shuffle-differs-across-ranks", range(len(shares)), text
    if not is_order:
        return _why_disordered(shares, order, shuffle)
    text = (
        f"the order is padded with {some(padding)}, but it begins with {some(beginning)}. The "
        "padding is the order's own beginning"
    )
    size = len(shares[0])
    return "padding-wrong", [r for r in range(len(shares)) if (r + 1) * size > num_samples], text


def _why_disordered(shares: Shares, order: list[int], shuffle: bool) -> Finding:
    every = range(len(shares))
    dealt = [share[k] for k in range(len(shares[0])) for share in shares]
    # Any order will do where it is shuffled: that it was padded, too, tells it from mere chance.
    padded = all(index == dealt[k % len(order)] for k, index in enumerate(dealt[len(order) :]))
    if (padded or not shuffle) and _is_order(dealt[: len(order)], shuffle):
        text = (
            f"rank 0 gets {some(shares[0])}: one in {len(shares)} of the order, dealt out like "
            "cards. Here each rank takes a chunk of neighbours"
        )
        return "not-contiguous", every, text
    if not shuffle and _is_order(order, shuffle=True):
        text = (
            f"`shuffle` is off, but the ranks' chunks after one another are {some(order)}, not "
            "0, 1, 2 and so on"
        )
        return "not-contiguous", every, text
    twice = repeated(order)
    text = (
        f"{some(twice)} {'comes' if len(twice) == 1 else 'come'} twice before every sample has "
        "come once. The padding comes after the whole order, and is its own beginning"
    )
    return "padding-wrong", every, text


def _is_order(order: Sequence[int], shuffle: bool) -> bool:
    """Tell whether `order` is a permutation, or, without shuffling, 0, 1, 2 and so on."""
    return list(range(len(order))) == (sorted(order) if shuffle else list(order))


def _was_cut_first(shares: Shares, num_samples: int) -> bool:
    """Tell whether each share holds what it would without shuffling."""
    size = len(shares[0])
    return all(
        sorted(share) == sorted(i % num_samples for i in range(r * size, (r + 1) * size))
        for r, share in enumerate(shares)
    )


def _all_alike(shares: Shares, num_samples: int) -> bool:
    alike = all(list(share) == list(shares[0]) for share in shares)
    return alike and min(num_samples, len(shares)) > 1 and len(shares[0]) > 0


def repeated(indices: Sequence[int]) -> list[int]:
    """Return the indices that come more than once, in time that grows as their number does."""
    return sorted(index for index, times in Counter(indices).items() if times > 1)


def some(indices: Sequence[int]) -> str:
    """Return the first few indices, and how many there are."""
    shown = ", ".join(map(str, indices[:SHOWN]))
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > SHOWN else shown


def _are(indices: Sequence[int]) -> str:
    return f"{some(indices)} {'is' if len(indices) == 1 else 'are'}"
