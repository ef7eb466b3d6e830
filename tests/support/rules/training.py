"""Mistakes in a complete training run, recognised by its samples, weights, history and output.

A run has a dict for each rank, as `support.probes.training.spied_training` returns it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gradsync.records import Diagnosis
from gradsync.testing.rules import Rule
from gradsync.testing.values import EXACT, close
from gradsync.text import counted, listed, verb
from support.probes.training import LEARNING_RATE
from support.rules.histories import KEYS, Row, Run
from support.rules.wrong_results import differs_from_one_process, ends_with

TORCHS_LR = 0.001
MOMENTA = [*(k / 20 for k in range(1, 20)), 0.99, 0.999]


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
    return _found("does-not-learn", text, guide, range(len(seen)))


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
        return _found("buffers-not-broadcast", text, guide, range(len(seen)))
    text = (
        "After training, the ranks have different models. They must start from rank 0's weights "
        "and take the same steps."
    )
    return _found("models-differ", text, guide, range(len(seen)))


def with_its_momentum(seen: Run, train: Callable[..., Any]) -> Any:
    """Return the one-process training run that ends like rank 0's, or else the one of plain SGD.

    The exercise asks for SGD with a learning rate and does not mention momentum, so a constant
    momentum is right too.

    Args:
        seen: a training run over a few epochs.
        train: takes settings of `torch.optim.SGD`; returns the result of one process, with
            `weights`.
    """
    plain = train()
    if close(plain.weights, seen[0]["weights"]):
        return plain
    others = (train(momentum=m, nesterov=n) for m in MOMENTA for n in (False, True))
    return next((one for one in others if close(one.weights, seen[0]["weights"])), plain)


def training_mistakes(
    weights_after: Callable[[int, float], Any],
    *,
    case: str,
    world_size: int,
    guide: str,
    mean: str,
    start: str,
) -> list[Rule]:
    """Return the rules that recognise a mistake by the final weights of the ranks.

    Args:
        weights_after: takes a rank and a factor; returns the final weights of one process that
            starts from this rank's weights and multiplies its steps by the factor.
        case: a description of the training run.
        world_size: the number of ranks.
        guide: the heading of GUIDELINES.md on the training.
        mean: the heading on averaging gradients.
        start: the heading on starting from rank 0's weights.
    """

    def rule(code: str, text: str, heading: str, rank: int = 0, scale: float = 1.0) -> Rule:
        return ends_with([weights_after(rank, scale)] * world_size, code, text, heading)

    return [
        rule(
            "sum-not-mean",
            f"Each step was {world_size} times too large: the gradients were summed over the "
            f"{world_size} ranks instead of averaged, or the loss or learning rate was multiplied "
            f"by {world_size}. Divide the sum by the number of ranks.",
            mean,
            scale=float(world_size),
        ),
        rule(
            "does-not-learn",
            "After training, the weights are the same as before: there was no optimizer step, or "
            "the optimizer does not have the parameters of the model.",
            guide,
            scale=0.0,
        ),
        *(
            rule(
                "wrong-source",
                f"Training started from rank {rank}'s weights. Start from rank 0's weights.",
                start,
                rank=rank,
            )
            for rank in range(1, world_size)
        ),
        *(
            rule(
                "differs-from-single-process",
                f"The weights are those of SGD with a learning rate of {lr} instead of the `lr` "
                f"of this test, {LEARNING_RATE}: pass `lr` on to the optimizer."
                + " 0.001 is torch's default."
                * (lr == TORCHS_LR),
                guide,
                scale=lr / LEARNING_RATE,
            )
            for lr in (TORCHS_LR, 0.01, 0.1)
        ),
        differs_from_one_process(guide, f"{case}; SGD with the given `lr` and no weight decay"),
    ]


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
    return _found("batch-size-divided", text, guide, range(len(seen)))


def later_steps_differ(
    seen: Run, weights: Any, history: Sequence[Row], guide: str
) -> Diagnosis | None:
    """Recognise a right first epoch that is followed by a wrong step.

    Args:
        seen: a training run over a few epochs.
        weights: the final weights of one process.
        history: the history of that process.
        guide: the heading of GUIDELINES.md on the training.
    """
    firsts = [row["val_loss"] for value in seen for row in value["history"][:1] if set(row) >= KEYS]
    ended_right = all(close(value["weights"], weights) for value in seen)
    if ended_right or not firsts or not close(firsts, [history[0]["val_loss"]] * len(firsts)):
        return None
    text = (
        "After epoch 0 the model equals the model of one process, but after epoch "
        f"{len(history) - 1} it does not. Every step must be an SGD step with the same `lr`, "
        "without weight decay and without gradients of earlier steps."
    )
    found = _found("differs-from-single-process", text, guide, range(len(seen)))
    return replace(found, vague=True)


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
    return replace(_found("differs-from-single-process", text, guide, wrong), vague=True)


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
    return _found("mode-not-restored", text, guide, wrong)


def _found(code: str, text: str, guide: str, ranks: Sequence[int] = ()) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), text, guide=guide)
