"""Mistakes in a complete training run, recognised by its samples, weights and modes.

A run has a dict for each rank, as `support.probes.training.spied_training` returns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradsync.records import Diagnosis
from gradsync.testing.values import EXACT, close
from gradsync.text import counted, listed, ranks_text, verb
from support.rules.findings import found
from support.rules.histories import Run


def not_trained(seen: Run, guide: str) -> Diagnosis | None:
    """Recognise ranks that do not train at all."""
    idle = [rank for rank, value in enumerate(seen) if not value["steps"]]
    if not idle:
        return None
    text = (
        f"On {ranks_text(idle)}, train returned without training the model on a single sample. "
        "Every rank must train on each batch of its loader."
    )
    return found("does-not-learn", text, guide, idle)


def trained_a_copy(seen: Run, before: Sequence[Any], guide: str) -> Diagnosis | None:
    """Recognise a training run after which the models that were passed are unchanged.

    Args:
        seen: a training run.
        before: by rank, the weights of its model before the training.
        guide: the heading of GUIDELINES.md on the training.
    """
    same = [close(value["weights"], own, EXACT) for value, own in zip(seen, before, strict=True)]
    if not all(same) or not all(value["trained"] for value in seen):
        return None
    text = (
        "After training, every rank's model is exactly as it was before, although the model or a "
        "copy was called with the samples. Train the model itself: a deep copy has its own "
        "parameters, and the optimizer needs the parameters of the model."
    )
    return found("does-not-learn", text, guide, range(len(seen)))


def models_differ(seen: Run, guide: str) -> Diagnosis | None:
    """Recognise ranks that do not end with the same model."""
    weights = seen[0]["weights"]
    wrong = [n for n in weights if any(not close(v["weights"][n], weights[n]) for v in seen)]
    if not wrong:
        return None
    if set(wrong) <= set(seen[0]["buffers"]):
        text = (
            "After training, the ranks have the same parameters, but their "
            f"{verb(wrong, 'buffer', 'buffers')} {listed(f'`{name}`' for name in wrong)} "
            f"{verb(wrong, 'differs', 'differ')}. Buffers belong to the model: "
            "broadcast them from rank 0 before the training too."
        )
        return found("buffers-not-broadcast", text, guide, range(len(seen)))
    text = (
        "After training, the ranks have different models. They must start from rank 0's weights "
        "and take the same steps."
    )
    return found("models-differ", text, guide, range(len(seen)))


def batches_divided(seen: Run, batch_size: int, guide: str) -> Diagnosis | None:
    """Recognise batches whose size is `batch_size` divided by the number of ranks.

    Args:
        seen: a training run in which each rank's share is larger than such a batch.
        batch_size: the argument of `train`, the batch size of one rank.
        guide: the heading of GUIDELINES.md on batches.
    """
    largest = {max(value["sizes"], default=0) for value in seen}
    if largest != {max(1, batch_size // len(seen))} or largest == {batch_size}:
        return None
    text = (
        f"Called with batch_size={batch_size}, {len(seen)} ranks train on batches of "
        f"{counted(largest.pop(), 'sample')}. `batch_size` is the batch size of each "
        "rank: do not divide it."
    )
    return found("batch-size-divided", text, guide, range(len(seen)))


def other_counts(seen: Run, share: int, guide: str) -> Diagnosis | None:
    """Recognise a rank that trains on more or fewer samples than its share in all epochs."""
    counts = [len(value["trained"]) for value in seen]
    wrong = [rank for rank, count in enumerate(counts) if count != share]
    if not wrong:
        return None
    text = (
        f"In all epochs together, rank {wrong[0]} trains on {counts[wrong[0]]} samples. It should "
        f"train on {share}, each sample of its share once in each epoch."
    )
    return replace(found("differs-from-single-process", text, guide, wrong), vague=True)


def trained_in_evaluation_mode(seen: Run, guide: str) -> Diagnosis | None:
    """Recognise models that were trained in evaluation mode, at least on some samples."""
    wrong = [rank for rank, value in enumerate(seen) if sum(value["sizes"]) < len(value["trained"])]
    if not wrong:
        return None
    text = (
        "train was called with a model in evaluation mode and did not switch it to training "
        "mode. Then dropout and BatchNorm behave as in evaluation. Switch the model to training "
        "mode first."
    )
    return found("mode-not-restored", text, guide, wrong)
