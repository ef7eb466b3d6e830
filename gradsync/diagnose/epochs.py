"""Mistakes in which samples ranks are trained on, in what order and how often, a dict a rank.

What a rank came to is as `gradsync.probes.training.spied_training` tells it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.diagnose.shares import repeated, some
from gradsync.records import Diagnosis
from gradsync.text import counted

Run = Sequence[Mapping[str, Any]]


def other_samples(
    seen: Run, reseeded: Run, unseeded: Run, *, samples: int, shares: str, epochs: str, guide: str
) -> Diagnosis | None:
    """Two ranks' epochs are not over shares of all samples, or in the order of an earlier one.

    Args:
        seen: of two epochs, with seed 0.
        reseeded: of one epoch, with another seed.
        unseeded: of one epoch, with no seed given.
        samples: of the training set, which the two ranks share, padded to an even number.
        shares: the heading of GUIDELINES.md on who gets which samples.
        epochs: the one on telling the sampler the epoch.
        guide: the one on `seed`.
    """
    size = -(-samples // 2)
    trained = [value["trained"] for value in seen]
    if other := other_epochs(trained, 2, samples, guide):
        return other
    first = [indices[: len(indices) // 2][:size] for indices in trained]
    second = [indices[len(indices) // 2 :][:size] for indices in trained]
    if other := other_shares(first, max(map(len, trained)) // 2, samples, shares):
        return other
    if first == second:
        text = (
            "the second epoch goes over the samples in the order of the first: nobody told the "
            "sampler that a new epoch began"
        )
        return _found("epoch-not-set", text, epochs, range(2))
    if first == [value["trained"][:size] for value in reseeded]:
        text = "with another `seed` train goes over the samples in the same order"
        return _found("seed-ignored", text, guide, range(2))
    if first != [value["trained"][:size] for value in unseeded]:
        text = (
            "called without `seed`, train goes over the samples in another order than with "
            "`seed=0`, which is its default"
        )
        return _found("wrong-signature", text, guide, range(2))
    return None


def order_of_another_epoch(seen: Run, guide: str) -> Diagnosis | None:
    """An epoch goes over the samples in the order that the sampler has for another one.

    When and how the sampler's epoch was set does not matter, as long as it is right in each pass.
    A training in which no order is one of the sampler's shuffles in another way: it is not judged.

    Args:
        seen: of whole epochs, with `orders`: what the submission's sampler yields in its first ones
            (see `gradsync.probes.training.orders_of_sampler`).
        guide: the heading of GUIDELINES.md on setting the epoch.
    """
    for rank, value in enumerate(seen):
        orders: Sequence[Sequence[int]] = value["orders"]
        size = len(orders[0]) if orders else 0
        passes = [
            value["trained"][epoch * size : (epoch + 1) * size] for epoch in range(len(orders))
        ]
        passes = [own for own in passes if own]
        wrong = [epoch for epoch, own in enumerate(passes) if own != orders[epoch]]
        if wrong and any(own in orders for own in passes):
            epoch, own = wrong[0], passes[wrong[0]]
            place = f"the sampler's epoch {orders.index(own)}" if own in orders else "another epoch"
            text = (
                f"in epoch {epoch} of the history, rank {rank} goes over its samples in the order "
                f"of {place}. The sampler's epochs are 0, 1 and so on, as the history counts them: "
                "set the epoch before each pass, or a training that resumes would take its order "
                "from the wrong epoch"
            )
            return _found("epoch-not-set", text, guide, [rank])
    return None


def other_epochs(
    trained: Sequence[Sequence[int]], epochs: int, samples: int, guide: str
) -> Diagnosis | None:
    """The ranks go over their shares of the samples, but not as often as they were asked to."""
    share = -(-samples // len(trained))
    counts = {len(own) / share for own in trained}
    first = {index for own in trained for index in own[:share]}
    if len(counts) > 1 or len(first) < samples or not (count := counts.pop()).is_integer():
        return None
    if count == epochs:
        return None
    often = "once" if count == 1 else f"{count:.0f} times"
    text = (
        f"called for {counted(epochs, 'epoch')}, train goes over each rank's share of the samples "
        f"{often}: `epochs` says how often, and they count from 0 to {epochs - 1}"
    )
    return _found("differs-from-single-process", text, guide, range(len(trained)))


def other_shares(
    first: Sequence[Sequence[int]], taken: int, samples: int, guide: str
) -> Diagnosis | None:
    """What two ranks take in the first epoch, `taken` at most, is not the half of all for each."""
    size = -(-samples // 2)
    again = [(rank, twice) for rank, own in enumerate(first) if (twice := repeated(own))]
    if again:
        rank, twice = again[0]
        text = f"in the first epoch rank {rank} trains on {some(twice)} more than once"
        return _found("samples-repeated", text, guide, [rank for rank, _ in again])
    both, covered = sorted(set(first[0]) & set(first[1])), set(first[0]) | set(first[1])
    if both and both == sorted(first[0]) and taken <= size:
        text = (
            f"in the first epoch both ranks train on the same samples, {some(both)}: each is to "
            "have its own share"
        )
        return _found("same-shard-on-every-rank", text, guide, range(2))
    if len(covered) == samples:
        return None
    if taken == size and all(len(set(own)) == size for own in first):
        text = (
            "in the first epoch the ranks' shares are of the right size, but cut out of different "
            f"orders: {len(both)} samples are in both, and {samples - len(covered)} in neither. "
            "The order has to be the same on every rank, so its seed, too"
        )
        return _found("shuffle-differs-across-ranks", text, guide, range(2))
    if not both and taken < size:
        text = (
            f"in the first epoch the ranks train on {len(covered)} of {samples} samples, with "
            "nothing interrupted: what does not divide evenly is to be padded, and never left out"
        )
        return _found("samples-missing", text, guide, range(2))
    text = (
        "in the first epoch the ranks do not train on shares that are disjoint, but for the "
        f"padding, and cover all {samples} samples: of their first {size}, {len(both)} are the same"
    )
    return _found("sampler-not-used", text, guide, range(2))


def _found(code: str, text: str, guide: str, ranks: Sequence[int] = ()) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text}", guide=guide)
