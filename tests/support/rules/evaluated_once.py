"""Mistakes in an evaluation in which each sample of a dataset counts exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.text import ranks_text
from support.rules.evaluation import (
    differs_across_ranks,
    own_samples_alone,
    pairs,
    predicts_otherwise,
)
from support.rules.wrong_results import ends_with

GUIDE = "Evaluation without padding"
Numbers = NDArray[Any]  # (sample,)
Metrics = dict[str, float]


def metrics(losses: Numbers, hits: Numbers, chosen: Any = slice(None)) -> Metrics:
    """Return what evaluate should return for these samples, given each one's loss and hit."""
    losses, hits = losses[chosen], hits[chosen]
    return {
        "loss": float(losses.mean()),
        "accuracy": float(hits.mean()),
        "samples": float(len(losses)),
    }


def result_mistakes(
    losses: Numbers, hits: Numbers, batch_size: int, rows: Sequence[int]
) -> list[Rule]:
    """Return the rules for wrong results of evaluate.

    Args:
        losses: the loss of each sample.
        hits: 1 for each sample that is classified correctly, 0 for the others.
        batch_size: the argument of evaluate.
        rows: by rank, the number of samples on which the model was run.
    """
    size, count = len(rows), len(losses)
    every = (losses, hits)
    return [
        *(
            own_samples_alone([metrics(*every, s) if len(s) else {} for s in shares], GUIDE)
            for shares in _dealings(count, size)
        ),
        differs_across_ranks(GUIDE),
        *(
            ends_with([wrong] * size, code, text, GUIDE)
            for code, text, wrong in _known_mistakes(losses, hits, size, batch_size)
        ),
        _all_on_every_rank(rows, count),
        _counts_other_samples(count),
        predicts_otherwise(GUIDE),
        _other_numbers,
    ]


def work_not_shared(
    count: int, batch_size: int, rows: Sequence[int], most: Sequence[int]
) -> Diagnosis | None:
    """Recognise ranks that each evaluate all samples, or more samples at once than a batch.

    Args:
        count: the number of samples.
        batch_size: the argument of evaluate.
        rows: by rank, the number of samples on which the model was run.
        most: by rank, the largest number of samples on which it was run at once.
    """
    size = len(rows)
    whole = [rank for rank in range(size) if rows[rank] >= count]
    if whole and size > 1 and count >= size:
        text = (
            f"{ranks_text(whole).capitalize()} ran the model on all {count} samples. Each rank "
            "must evaluate only its own share."
        )
        return Diagnosis("same-shard-on-every-rank", tuple(whole), text, guide=GUIDE)
    if max(most) <= batch_size:
        return None
    text = (
        f"With batch_size={batch_size}, evaluate runs the model on {max(most)} samples at once. "
        "Split each rank's share into batches: a large share does not fit into memory."
    )
    ranks = tuple(rank for rank in range(size) if most[rank] > batch_size)
    return Diagnosis("batch-size-ignored", ranks, text, guide=GUIDE)


def _all_on_every_rank(rows: Sequence[int], count: int) -> Rule:
    """Return the rule for ranks that each evaluate all samples, and then add up their sums."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        size = len(seen)
        summed = all(result["samples"] == count * size for result in seen)
        if not 1 < size <= count or not summed or list(rows) != [count] * size:
            return None
        text = (
            f"evaluate counts {count * size} samples on {size} ranks, but the dataset has {count}: "
            "every rank evaluates all of them, and their sums are added up. Each rank must "
            "evaluate only its own share."
        )
        return Diagnosis("same-shard-on-every-rank", tuple(range(size)), text, guide=GUIDE)

    return rule


def _counts_other_samples(count: int) -> Rule:
    """Return the rule for a wrong number of samples."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        counted = round(seen[0]["samples"])
        if counted == count:
            return None
        code, what = "samples-missing", "some are missing"
        if counted > count:
            code, what = "samples-repeated", "some count more than once, such as padding"
        text = (
            f"evaluate counts {counted} samples on {len(seen)} ranks, but the dataset has {count}: "
            f"{what}. Each sample must count once."
        )
        return Diagnosis(code, tuple(range(len(seen))), text, guide=GUIDE)

    return rule


def _other_numbers(seen: Observation, _expected: Any) -> Diagnosis | None:
    text = (
        f"evaluate returns {pairs(seen[0])} on {len(seen)} ranks. The number of samples is right, "
        "but the loss or the accuracy differs from the result of one process with all samples."
    )
    return Diagnosis("differs-from-single-process", tuple(range(len(seen))), text, guide=GUIDE)


def _known_mistakes(
    losses: Numbers, hits: Numbers, size: int, batch_size: int
) -> Iterator[tuple[str, str, Metrics]]:
    """Yield each known mistake as (code, message, the resulting numbers)."""
    right, own, count = metrics(losses, hits), "differs-from-single-process", len(losses)
    means = "evaluate averages the means of parts of unequal size. Add up the sums of all parts, "
    means += "and divide once by the number of all samples."
    for shares in _dealings(count, size):
        having = [metrics(losses, hits, share) for share in shares if len(share)]
        batches = [
            metrics(losses, hits, share[start : start + batch_size])
            for share in shares
            for start in range(0, len(share), batch_size)
        ]
        for parts in (having, batches):
            mean = {name: float(np.mean([p[name] for p in parts])) for name in ("loss", "accuracy")}
            yield "mean-of-means", means, {**right, **mean}
            yield "mean-of-means", means, {**right, "loss": mean["loss"]}
        total = sum(part["loss"] for part in batches)
        text = "evaluate adds up the mean losses of the batches and divides by the samples. "
        text += "Multiply each batch's mean loss by the number of samples in it."
        yield "mean-of-means", text, {**right, "loss": total / count}
        text = (
            "evaluate multiplies each batch's mean loss by batch_size. The last batch of a share "
        )
        text += "may be smaller: multiply by the number of samples in the batch."
        yield "mean-of-means", text, {**right, "loss": total * batch_size / count}
    odd = "evaluate returns {} as the accuracy. Return the share of correct samples, from 0 to 1."
    yield own, odd.format("a percentage"), {**right, "accuracy": 100 * right["accuracy"]}
    yield own, odd.format("the number of correct samples"), {**right, "accuracy": hits.sum()}


def _dealings(count: int, size: int) -> list[list[Numbers]]:
    """Return the shares of all ranks: contiguous and strided ones, which are both accepted."""
    everything = np.arange(count)
    strided = [everything[rank::size] for rank in range(size)]
    return [np.array_split(everything, size), strided]
