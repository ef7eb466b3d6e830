"""Mistakes in the samples of a training run: which ones, in which order and how often.

A run has a dict for each rank, as `support.probes.training.spied_training` returns it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.records import Diagnosis
from gradsync.text import counted, listed, ranks_text, verb
from support.rules.findings import found
from support.rules.shares import repeated, some

Run = Sequence[Mapping[str, Any]]


def other_samples(
    seen: Run, reseeded: Run, unseeded: Run, *, samples: int, shares: str, epochs: str, guide: str
) -> Diagnosis | None:
    """Recognise epochs of two ranks with wrong shares, or with an order that is repeated.

    Args:
        seen: two epochs, with seed 0.
        reseeded: one epoch, with another seed.
        unseeded: one epoch, without a seed.
        samples: the size of the training set, which two ranks share, padded to an even number.
        shares: the heading of GUIDELINES.md on sharing out the samples.
        epochs: the heading on setting the sampler's epoch.
        guide: the heading on `seed`.
    """
    if strange := trained_on_others(seen, shares):
        return strange
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
            "The second epoch goes over the samples in the same order as the first"
            f"{_whose(first[0], seen[0]['orders'])}. Before each epoch, call `set_epoch` of the "
            "sampler with the number of this epoch: 0, then 1."
        )
        return found("epoch-not-set", text, epochs, range(2))
    if first == [value["trained"][:size] for value in reseeded]:
        text = (
            "With a different `seed`, train goes over the samples in the same order. Use the seed "
            "for the order of the samples."
        )
        return found("seed-ignored", text, guide, range(2))
    if first != [value["trained"][:size] for value in unseeded]:
        text = (
            "Called without `seed`, train goes over the samples in a different order than with "
            "`seed=0`. The default of `seed` is 0."
        )
        return found("wrong-signature", text, guide, range(2))
    return None


def trained_on_others(seen: Run, guide: str) -> Diagnosis | None:
    """Recognise ranks that train on samples of the validation set."""
    wrong = [rank for rank, value in enumerate(seen) if value["strange"]]
    if not wrong:
        return None
    text = (
        f"{ranks_text(wrong).capitalize()} {verb(wrong, 'trains', 'train')} on samples of "
        "`val_dataset`. Train on the train loader and evaluate on the val loader. Are the two "
        "loaders, or the two datasets, swapped? The train loader is always the first one."
    )
    return found("samples-missing", text, guide, wrong)


def _whose(own: Sequence[int], orders: Sequence[Sequence[int]]) -> str:
    """Return ", that of the sampler's epoch 3", if this order is known."""
    known = [epoch for epoch, order in enumerate(orders) if list(order) == list(own)]
    return f", that of the sampler's epoch {known[0]}" if known else ""


def order_of_another_epoch(seen: Run, guide: str) -> Diagnosis | None:
    """Recognise an epoch in the order that the sampler has for another epoch.

    It does not matter when and how the sampler's epoch was set, if it is right in each pass.
    A training run that never uses the sampler's orders shuffles differently and is not judged.
    If the history has the same wrong numbers, both are one mistake, with the code of `other_rows`.

    Args:
        seen: complete epochs, with `orders` of the submission's sampler in its first epochs
            (see `support.probes.training.orders_of_sampler`).
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
        if wrong and (first := _counted_from(value, passes)):
            text = (
                f"train counts its epochs from {first:g}: the sampler gets these numbers, and the "
                "history has them. Count from 0 in both."
            )
            return found("wrong-signature", text, guide, [rank])
        if wrong and any(own in orders for own in passes):
            epoch, own = wrong[0], passes[wrong[0]]
            place = f"the sampler's epoch {orders.index(own)}" if own in orders else "another epoch"
            text = (
                f"In epoch {epoch} of the history, rank {rank} goes over its samples in the order "
                f"of {place}. Before each pass, call `set_epoch` with the number of the epoch in "
                "the history: 0, 1 and so on. With other numbers, a resumed training run would use "
                "a wrong order."
            )
            return found("epoch-not-set", text, guide, [rank])
    return None


def _counted_from(value: Mapping[str, Any], passes: Sequence[Sequence[int]]) -> float:
    """Return the epoch that history and sampler both count from, or 0 if they do not agree."""
    numbers = [row.get("epoch") for row in value.get("history", ())]
    orders = dict(enumerate(value["orders"]))
    agree = list(passes) == [orders.get(number) for number in numbers]
    return numbers[0] if agree and numbers else 0


def other_batches(
    counts: Sequence[int], wanted: int, guide: str, where: str | None = None
) -> Diagnosis | None:
    """Recognise an epoch that does not train once on each batch.

    Args:
        counts: by rank, the number of batches that were trained on.
        wanted: the number of batches in each rank's loader.
        guide: the heading of GUIDELINES.md on an epoch.
        where: the line that returns from the epoch, if it is known.
    """
    wrong = [rank for rank, count in enumerate(counts) if count != wanted]
    if not wrong:
        return None
    text = (
        f"The ranks trained on {listed(counts)} batches in train_epoch. Each rank's loader has "
        f"{counted(wanted, 'batch', 'batches')}."
    )
    if set(counts) == {1}:
        text += " Does a `return` or `break` end the loop after the first one, or is the last one "
        text += "left out?"
    code = "samples-repeated" if max(counts) > wanted else "samples-dropped"
    return Diagnosis(code, tuple(wrong), text, where, guide)


def other_epochs(
    trained: Sequence[Sequence[int]], epochs: int, samples: int, guide: str
) -> Diagnosis | None:
    """Recognise ranks that do not go over their shares as often as they should."""
    share = -(-samples // len(trained))
    counts = {len(own) / share for own in trained}
    first = {index for own in trained for index in own[:share]}
    if len(counts) > 1 or len(first) < samples or not (count := counts.pop()).is_integer():
        return None
    if count == epochs:
        return None
    text = (
        f"Called with epochs={epochs}, train goes over each rank's share "
        f"{counted(int(count), 'time')} instead of {epochs}. Make one pass per epoch."
    )
    return found("differs-from-single-process", text, guide, range(len(trained)))


def other_shares(
    first: Sequence[Sequence[int]], taken: int, samples: int, guide: str
) -> Diagnosis | None:
    """Recognise wrong shares in the first epoch of the ranks, `taken` samples at most."""
    size, ranks = -(-samples // len(first)), range(len(first))
    every = "both ranks" if len(first) == 2 else "all ranks"
    again = [(rank, twice) for rank, own in enumerate(first) if (twice := repeated(own))]
    if again:
        rank, twice = again[0]
        text = (
            f"In the first epoch, rank {rank} trains on {some(twice)} more than once. Each sample "
            "must come once in an epoch, except in the padding."
        )
        return found("samples-repeated", text, guide, [rank for rank, _ in again])
    times = Counter(index for own in first for index in own)
    covered, both = times.keys(), sorted(index for index, count in times.items() if count > 1)
    if len(covered) == samples:
        return None
    if both and all(sorted(own) == both for own in first) and taken <= size:
        text = (
            f"In the first epoch, {every} train on the same samples, {some(both)}. Each rank "
            "must train on its own share. Does the code that makes the loader get this rank's "
            "`rank`?"
        )
        return found("same-shard-on-every-rank", text, guide, ranks)
    if taken == size and all(len(set(own)) == size for own in first):
        text = (
            "In the first epoch, the ranks' shares have the right size but are cut from different "
            f"orders: {counted(len(both), 'sample')} {verb(both, 'is', 'are')} in several shares, "
            f"and {samples - len(covered)} in none. "
            "The order must be the same on every rank, so its seed must be the same too."
        )
        return found("shuffle-differs-across-ranks", text, guide, ranks)
    if not both and taken < size:
        text = (
            f"In the first epoch, the ranks train on only {len(covered)} of {samples} samples. If "
            "the number of samples is not divisible by the number of ranks, pad the shares; do not "
            "drop samples."
        )
        return found("samples-missing", text, guide, ranks)
    which = "the" if len(both) == size else f"{len(both)} of the"
    are = verb(both, "is", "are")
    text = (
        f"In the first epoch, {which} first {size} samples {are} the same on {every}. The "
        "shares should overlap only in the padding. Does the training loader have your sampler, "
        "and does the code that makes it get this rank's `rank` and `world_size`?"
    )
    return found("sampler-not-used", text, guide, ranks)
