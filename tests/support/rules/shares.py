"""Mistakes in sharing out a dataset. A share is the list of a rank's indices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from gradsync.records import Diagnosis
from gradsync.text import counted, listed, ranks_text, verb

GUIDE = "Data distribution"
SHOWN = 12  # indices that a message shows

Shares = Sequence[Sequence[int]]
Finding = tuple[str, Sequence[int], str]  # a code, ranks, and a text to follow "10 samples: "


def diagnose_shares(
    shares: Shares, num_samples: int, shuffle: bool, shortcut: bool = False
) -> Diagnosis | None:
    """Return the diagnosis of the ranks' shares of one epoch, or None if they are right.

    With `shuffle`, every permutation is a right order. All shares, one after another, must be the
    order, padded at its end with its own beginning.

    Args:
        shares: the indices of each rank.
        num_samples: the size of the dataset.
        shuffle: whether the order may be any permutation; otherwise it must be 0, 1, 2 and so on.
        shortcut: whether the shares come from torch's own sampler.
    """
    finding = look_at_counts(shares, num_samples, shuffle)
    finding = finding or _look_at_order(shares, num_samples, shuffle)
    if finding is None:
        return None
    code, ranks, text = finding
    what = ""
    if shortcut:
        code = "forbidden-shortcut"
        what = "torch's DistributedSampler does the work here. Write the sampler yourself. "
    case = f"{counted(num_samples, 'sample')} on {counted(len(shares), 'rank')}"
    return Diagnosis(code, tuple(ranks), f"{what}{case}: {text}", guide=GUIDE)


def look_at_counts(shares: Shares, num_samples: int, shuffle: bool) -> Finding | None:
    """Check the number of indices that the ranks get, and which indices they are."""
    every = range(len(shares))
    wanted = math.ceil(num_samples / len(shares))
    lengths = [len(share) for share in shares]
    if _padded_once(shares, num_samples, wanted, shuffle):
        short = [rank for rank in every if lengths[rank] < wanted]
        text = (
            f"the order is padded with its beginning only once, so {ranks_text(short)} "
            f"{verb(short, 'gets', 'get')} too few indices. Repeat it as often as needed."
        )
        return "padding-wrong", short, text
    if len(set(lengths)) > 1:
        text = (
            f"the ranks get {listed(lengths)} indices. A rank with fewer batches makes fewer "
            "collective calls, so the other ranks wait forever. Pad the order until every rank "
            "gets the same number."
        )
        return "unequal-shards", [r for r in every if lengths[r] != wanted], text
    if _all_alike(shares, num_samples):
        text = (
            f"every rank gets the same indices, {some(shares[0])}, so all ranks do the same work. "
            "A share must depend on the rank."
        )
        return "same-shard-on-every-rank", every, text
    together = {index for share in shares for index in share}
    strangers = sorted(i for i in together if not 0 <= i < num_samples)
    missing = sorted(set(range(num_samples)) - together)
    if missing:
        return _why_missing(shares, missing, strangers, wanted, shuffle)
    if strangers:
        text = (
            f"{_are(strangers)} not in the dataset, whose last index is {num_samples - 1}. Pad the "
            "order with its own beginning."
        )
        return "padding-wrong", [r for r in every if set(shares[r]) & set(strangers)], text
    if lengths[0] != wanted:
        gets = counted(lengths[0], "index", "indices")
        text = f"every rank gets {gets}, but {wanted} would cover all samples."
        return "wrong-length", every, text
    return None


def _padded_once(shares: Shares, num_samples: int, wanted: int, shuffle: bool) -> bool:
    """Return whether the shares are cut from the order and one copy of it, which is too short."""
    order = [index for share in shares for index in share]
    lengths = [len(share) for share in shares]
    twice = [wanted] * (2 * num_samples // wanted)
    return (
        2 * num_samples < wanted * len(shares)
        and lengths[: len(twice)] == twice
        and _is_order(order[:num_samples], shuffle)
        and order == order[:num_samples] * 2
    )


def _why_missing(
    shares: Shares, missing: list[int], strangers: list[int], wanted: int, shuffle: bool
) -> Finding:
    every = range(len(shares))
    text = f"no rank gets {some(missing)}"
    if strangers:
        text += f", but {_are(strangers)} not in the dataset. Indices start at 0."
        return "samples-missing", every, text
    if shuffle and all(len(share) == len(set(share)) == wanted for share in shares):
        both = [(a, b) for b in every for a in range(b) if set(shares[a]) & set(shares[b])]
        if both:
            a, b = both[0]
            text += f", but ranks {a} and {b} both get "
            text += some(sorted(set(shares[a]) & set(shares[b])))
        text += (
            ". The counts are right, so the ranks cut their shares from different permutations. "
            "The permutation must depend only on the seed and the epoch, not on the rank."
        )
        return "shuffle-differs-across-ranks", every, text
    return "samples-missing", every, f"{text}. Every sample must be in some rank's share."


def _look_at_order(shares: Shares, num_samples: int, shuffle: bool) -> Finding | None:
    """Check the positions of the indices, if their number is right."""
    together = [index for share in shares for index in share]
    order, padding = together[:num_samples], together[num_samples:]
    beginning = [order[k % num_samples] for k in range(len(padding))]
    is_order = _is_order(order, shuffle)
    if is_order and padding == beginning:
        return None
    if shuffle and _was_cut_first(shares, num_samples):
        text = (
            f"rank 0's share is {some(sorted(shares[0]))}, in some order: each share is shuffled "
            "separately. Draw the permutation of all samples first, and then cut it into shares."
        )
        return "shuffle-differs-across-ranks", range(len(shares)), text
    if not is_order:
        return _why_disordered(shares, order, shuffle)
    text = (
        f"the order is padded with {some(padding)}, but it begins with {some(beginning)}. Pad the "
        "order with its own beginning."
    )
    size = len(shares[0])
    return "padding-wrong", [r for r in range(len(shares)) if (r + 1) * size > num_samples], text


def _why_disordered(shares: Shares, order: list[int], shuffle: bool) -> Finding:
    every = range(len(shares))
    dealt = [share[k] for k in range(len(shares[0])) for share in shares]
    # With `shuffle` any order is right. Padding that fits it shows that this is not a coincidence.
    padded = all(index == dealt[k % len(order)] for k, index in enumerate(dealt[len(order) :]))
    if (padded or not shuffle) and _is_order(dealt[: len(order)], shuffle):
        text = (
            f"rank 0 gets one index in {len(shares)}: {some(shares[0])}. Each rank must take a "
            "contiguous chunk."
        )
        return "not-contiguous", every, text
    if not shuffle and _is_order(order, shuffle=True):
        text = (
            f"`shuffle` is off, but the ranks' chunks one after another are {some(order)}. They "
            "must be 0, 1, 2 and so on."
        )
        return "not-contiguous", every, text
    twice = repeated(order)
    text = (
        f"{verb(twice, 'index', 'indices')} {some(twice)} {verb(twice, 'is', 'are')} used again "
        "before every index is used once. Pad the order at its end, with its own beginning."
    )
    return "padding-wrong", every, text


def _is_order(order: Sequence[int], shuffle: bool) -> bool:
    """Return whether `order` is a permutation, or, without shuffling, 0, 1, 2 and so on."""
    return list(range(len(order))) == (sorted(order) if shuffle else list(order))


def _was_cut_first(shares: Shares, num_samples: int) -> bool:
    """Return whether each share has the same indices as without shuffling."""
    size = len(shares[0])
    return all(
        sorted(share) == sorted(i % num_samples for i in range(r * size, (r + 1) * size))
        for r, share in enumerate(shares)
    )


def _all_alike(shares: Shares, num_samples: int) -> bool:
    alike = all(list(share) == list(shares[0]) for share in shares)
    return alike and min(num_samples, len(shares)) > 1 and len(shares[0]) > 0


def repeated(indices: Sequence[int]) -> list[int]:
    """Return the indices that occur more than once, in linear time."""
    return sorted(index for index, times in Counter(indices).items() if times > 1)


def some(indices: Sequence[int]) -> str:
    """Return the first few indices as a text, and how many there are."""
    shown = ", ".join(map(str, indices[:SHOWN]))
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > SHOWN else shown


def _are(indices: Sequence[int]) -> str:
    return f"{some(indices)} {verb(indices, 'is', 'are')}"
