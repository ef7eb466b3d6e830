"""Numbers of a history that are means over only some samples, or means of means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.records import Diagnosis
from gradsync.testing.values import close
from support.rules.histories import Run

Numbers = Sequence[float]
Means = Sequence[float]  # by rank
WHOLE = "It must be the mean over the samples of all ranks."


def other_means(
    seen: Run, right: Sequence[Mapping[str, Any]], batch_size: int, *, guide: str, evaluation: str
) -> Diagnosis | None:
    """Recognise a number of an epoch that is a mean over some ranks' samples, or of means.

    Args:
        seen: with an entry for each epoch.
        right: the right entries of these epochs. `samples` has the values that each number is the
            mean of: (sample,), or for the train loss a list of them for each step, where the ranks'
            samples follow one another.
        batch_size: the batch size of one rank.
        guide: the heading of GUIDELINES.md on the training.
        evaluation: the one on the validation samples.
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
                    text = f"By rank, `{name}` of epoch {epoch} is {reported}: {what}"
                    return Diagnosis(code, tuple(range(len(seen))), text, guide=heading)
    return None


def _own_steps(steps: Sequence[Numbers], size: int) -> Iterator[tuple[Means, str, str]]:
    """Yield the means over each rank's own samples of each step."""
    shares = [
        np.concatenate(parts)
        for parts in zip(*(np.array_split(s, size) for s in steps), strict=True)
    ]
    yield from _local([float(share.mean()) for share in shares])


def _shared(values: Numbers, size: int, batch_size: int) -> Iterator[tuple[Means, str, str]]:
    """Yield the means of samples that are shared out in several ways."""
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
