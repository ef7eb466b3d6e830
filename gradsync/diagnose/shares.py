"""Mistakes in sharing out a dataset. Shares are lists of indices, one a rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis

GUIDE = "Data distribution"
Shares = Sequence[Sequence[int]]
SHOWN = 12  # indices of a share that an explanation shows


def diagnose_shares(shares: Shares, num_samples: int, shuffle: bool) -> Diagnosis | None:
    """Return what is wrong with the ranks' shares of one epoch, None if nothing is.

    The order itself is the submission's own: with `shuffle` any permutation will do. What is
    known of it is that all shares together are it, padded at its end with its own beginning.
    """
    world_size = len(shares)
    wanted = math.ceil(num_samples / world_size)
    case = f"{num_samples} samples on {world_size} rank{'s' * (world_size != 1)}"
    together = [index for share in shares for index in share]

    lengths = [len(share) for share in shares]
    if len(set(lengths)) > 1:
        return _found(
            "unequal-shards",
            [r for r, n in enumerate(lengths) if n != wanted],
            f"{case}: the ranks get {', '.join(map(str, lengths))} indices. A rank with fewer "
            "batches leaves the collectives early, and the others wait for ever",
        )
    strangers = sorted({i for i in together if not 0 <= i < num_samples})
    if strangers:
        return _found(
            "padding-wrong",
            _ranks_with(shares, strangers),
            f"{case}: {_some(strangers)} {'is' if len(strangers) == 1 else 'are'} no index of "
            "the dataset. The padding is the order's own beginning",
        )
    if world_size > 1 and _all_alike(shares, num_samples):
        return _found(
            "same-shard-on-every-rank",
            range(world_size),
            f"{case}: every rank gets the same indices, {_some(shares[0])}. They all do the same "
            "work, and the rest of the data is never seen",
        )
    missing = sorted(set(range(num_samples)) - set(together))
    if missing:
        return _found(
            "samples-missing",
            range(world_size),
            f"{case}: no rank gets {_some(missing)}. Every sample belongs to some rank",
        )
    if lengths[0] != wanted:
        return _found(
            "wrong-length",
            range(world_size),
            f"{case}: every rank gets {lengths[0]} indices, where {wanted} are enough to cover all",
        )
    return _diagnose_order(shares, together, num_samples, shuffle, case)


def _diagnose_order(
    shares: Shares, together: list[int], num_samples: int, shuffle: bool, case: str
) -> Diagnosis | None:
    """Look at where the indices lie, when there are as many as there should be."""
    every = range(len(shares))
    order = together[:num_samples]
    is_permutation = len(set(order)) == num_samples
    in_order = shuffle or order == list(range(num_samples))
    if not is_permutation or not in_order:
        strided = [share[k] for k in range(len(shares[0])) for share in shares]
        head = strided[:num_samples]
        if len(set(head)) == num_samples and (shuffle or head == list(range(num_samples))):
            return _found(
                "not-contiguous",
                every,
                f"{case}: rank 0 gets {_some(shares[0])}, every {len(shares)}th of the order. "
                "Each rank takes a chunk of neighbours",
            )
        if not shuffle and is_permutation:
            return _found(
                "not-contiguous",
                every,
                f"{case}, not shuffled: together the ranks go through {_some(order)}, not 0, 1, 2 "
                "and so on",
            )
        return _found(
            "padding-wrong",
            every,
            f"{case}: some samples come twice before the order has ended. The padding comes "
            "after the whole order, and starts again at its beginning",
        )
    padding = together[num_samples:]
    beginning = [order[k % num_samples] for k in range(len(padding))]
    if padding != beginning:
        return _found(
            "padding-wrong",
            [len(shares) - 1],
            f"{case}: the order is padded with {_some(padding)}, but it begins with "
            f"{_some(beginning)}. The padding is the order's own beginning",
        )
    return None


def _all_alike(shares: Shares, num_samples: int) -> bool:
    return num_samples > 1 and all(list(share) == list(shares[0]) for share in shares)


def _found(code: str, ranks: Any, text: str) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text} (GUIDELINES, {GUIDE})", guide=GUIDE)


def _ranks_with(shares: Shares, indices: Sequence[int]) -> list[int]:
    return [rank for rank, share in enumerate(shares) if set(share) & set(indices)]


def _some(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:SHOWN]))
    return f"{shown}, ... ({len(indices)} in all)" if len(indices) > SHOWN else shown
