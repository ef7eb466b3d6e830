"""Numbers of a history or an evaluation that are means over some samples, or means of means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import listed
from support.rules.evaluation import pairs
from support.rules.histories import Run

Numbers = Sequence[float]
Means = Sequence[float]  # by rank
WHOLE = "It must be the mean over the samples of all ranks."


def other_means(
    seen: Run, right: Sequence[Mapping[str, Any]], batch_size: int, *, guide: str, evaluation: str
) -> Diagnosis | None:
    """Recognise a number of an epoch that is a mean over some ranks' samples, or a mean of means.

    Args:
        seen: with an entry for each epoch.
        right: the right entries of these epochs. For each number, `samples` has the values that are
            averaged: (sample,), or for the train loss a list for each step, with the samples of
            rank 0, then those of rank 1, and so on.
        batch_size: the batch size of one rank.
        guide: the heading of GUIDELINES.md on the training.
        evaluation: the heading on the validation samples.
    """
    for epoch, wanted in enumerate(right):
        for name, values in wanted["samples"].items():
            reported = [value["history"][epoch][name] for value in seen]
            if all(close(number, wanted[name]) for number in reported):
                continue
            trains = name == "train_loss"
            known = (
                _own_steps(values, len(seen)) if trains else _shared(values, len(seen), batch_size)
            )
            for means, code, what in known:
                if close(reported, list(means)):
                    heading = guide if trains else evaluation
                    text = f"`{name}` of epoch {epoch} is {reported} on the ranks: {what}"
                    return Diagnosis(code, tuple(range(len(seen))), text, guide=heading)
            return None  # a number that is right by chance in another place explains nothing
    return None


def mean_of_ranks(own: Sequence[Mapping[str, float]], guide: str) -> Rule:
    """Return the rule for a loss and an accuracy that are means of the ranks' results (`own`)."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if not all(own):
            return None
        means = {name: sum(one[name] for one in own) / len(own) for name in ("loss", "accuracy")}
        if all(close(means[name], expected[0][name]) for name in means):
            return None
        if not all(close(result[name], means[name]) for result in seen for name in means):
            return None
        counts = listed(f"{one['samples']:g}" for one in own)
        text = (
            f"evaluate returns {pairs(means)}: the means of the ranks' own numbers. The ranks have "
            f"{counts} samples, so a sample does not have the same weight on every rank. Sum the "
            "losses, the correct answers and the samples over the ranks, and then divide once."
        )
        return Diagnosis("mean-of-means", tuple(range(len(seen))), text, guide=guide)

    return rule


def left_the_loop(samples: int, guide: str, line: str | None = None) -> Rule:
    """Return the rule for ranks that agree, but did not count all samples of their loaders.

    Args:
        samples: the samples of all ranks' loaders.
        guide: the heading of GUIDELINES.md on the evaluation.
        line: the line that returns from evaluate, if it is known.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        few = seen[0]["samples"] < samples and all(close(result, seen[0]) for result in seen)
        if not few or close(seen[0]["loss"], expected[0]["loss"]):
            return None
        text = (
            f"evaluate returns {pairs(seen[0])}, but the ranks' loaders yield {samples} samples. "
            "Does a `return` or `break` end the loop over the batches too early?"
        )
        return Diagnosis("samples-dropped", tuple(range(len(seen))), text, line, guide)

    return rule


def _own_steps(steps: Sequence[Numbers], size: int) -> Iterator[tuple[Means, str, str]]:
    """Yield the means over each rank's own samples of each step."""
    shares = [
        np.concatenate(parts)
        for parts in zip(*(np.array_split(s, size) for s in steps), strict=True)
    ]
    yield from _local([float(share.mean()) for share in shares])


def _shared(values: Numbers, size: int, batch_size: int) -> Iterator[tuple[Means, str, str]]:
    """Yield the means over samples that are shared out in different ways."""
    plain = np.asarray(values)
    padded = np.resize(values, -(-len(values) // size) * size)
    for whole, repeats in ((plain, False), (padded, True)):
        dealings = (np.array_split(whole, size), [whole[rank::size] for rank in range(size)])
        for shares in dealings:
            yield from _local([float(share.mean()) for share in shares if len(share)])
            starts = range(0, max(map(len, shares)), batch_size)
            batches = [
                part for share in shares for s in starts if len(part := share[s : s + batch_size])
            ]
            for parts in ([share for share in shares if len(share)], batches):
                mean = float(np.mean([part.mean() for part in parts]))
                if repeats:
                    text = "samples that the padding repeats are counted twice. Count each once."
                    yield [mean] * size, "samples-repeated", text
                else:
                    text = "it is a mean of means, but shares or batches have different sizes. Add "
                    text += "up all values and divide once by the number of all samples."
                    yield [mean] * size, "mean-of-means", text


def _local(own: Means) -> Iterator[tuple[Means, str, str]]:
    if len(own) > 1:
        yield own, "loss-is-local", f"each rank returns the mean over its own samples. {WHOLE}"
        for rank, mean in enumerate(own):
            text = f"it is the mean over rank {rank}'s samples. {WHOLE}"
            yield [mean] * len(own), "loss-is-local", text
