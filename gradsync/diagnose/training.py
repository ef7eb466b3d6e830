"""Mistakes in a whole training, known by its samples, weights, history and lines, a dict a rank.

What a rank came to is as `gradsync.probes.training.spied_training` tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import differs_from_one_process, would_be
from gradsync.diagnose.histories import KEYS, Row, Run
from gradsync.diagnose.shares import some
from gradsync.diagnose.values import EXACT, close
from gradsync.records import Diagnosis

MOMENTA = [*(k / 20 for k in range(1, 20)), 0.99, 0.999]


def trained_a_copy(seen: Run, before: Sequence[Any], guide: str) -> Diagnosis | None:
    """Something was trained on the samples, and the models still are as they came.

    Args:
        seen: a training.
        before: by rank, the weights that its model began with.
        guide: the heading of GUIDELINES.md on the training.
    """
    same = [close(value["weights"], own, EXACT) for value, own in zip(seen, before, strict=True)]
    if not all(same) or not all(value["trained"] for value in seen):
        return None
    text = (
        "after training every rank's model is exactly as it was given to train, though the samples "
        "went through it, or through a copy. Train the model itself: a deep copy has parameters of "
        "its own, and the optimizer needs those of the model"
    )
    return _found("does-not-learn", text, guide, range(len(seen)))


def models_differ(seen: Run, guide: str) -> Diagnosis | None:
    """The ranks do not end with one and the same model."""
    weights = seen[0]["weights"]
    wrong = [n for n in weights if any(not close(v["weights"][n], weights[n]) for v in seen)]
    if not wrong:
        return None
    if set(wrong) <= set(seen[0]["buffers"]):
        text = (
            f"after training the ranks have the same parameters, but not the same {some(wrong)}: "
            "buffers belong to a model, too, and are to be rank 0's from the start"
        )
        return _found("buffers-not-broadcast", text, guide, range(len(seen)))
    text = (
        "after training the ranks have different models: they must start from rank 0's weights "
        "and make the same steps"
    )
    return _found("models-differ", text, guide, range(len(seen)))


def with_its_momentum(seen: Run, train: Callable[..., Any]) -> Any:
    """Return the training of one process that ends as rank 0 did, else that of plain SGD.

    SGD is asked for, with a learning rate and no word of momentum: a constant one is right, too.

    Args:
        seen: of a few epochs.
        train: from settings of `torch.optim.SGD` to what one process comes to, with its `weights`.
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
    """Return the rules that know a mistake by the weights that the ranks end with.

    Args:
        weights_after: what one process ends with that starts from this rank's weights, and takes
            steps that are so many times as long.
        case: what was trained on.
        world_size: the number of ranks.
        guide: the heading of GUIDELINES.md on the training.
        mean: the one on averaging gradients.
        start: the one on starting from rank 0's weights.
    """

    def rule(code: str, text: str, heading: str, rank: int = 0, scale: float = 1.0) -> Rule:
        return would_be([weights_after(rank, scale)] * world_size, code, text, heading)

    return [
        rule(
            "sum-not-mean",
            f"steps were {world_size} times too long, as if gradients were summed over "
            f"{world_size} ranks and not averaged, or the learning rate multiplied by their number",
            mean,
            scale=float(world_size),
        ),
        rule(
            "does-not-learn",
            "after training the model's weights are those from before: no step was taken, or of "
            "other parameters than the model's",
            guide,
            scale=0.0,
        ),
        *(
            rule(
                "wrong-source",
                f"training started from rank {rank}'s weights, not from rank 0's",
                start,
                rank=rank,
            )
            for rank in range(1, world_size)
        ),
        differs_from_one_process(guide, case),
    ]


def batches_divided(seen: Run, batch_size: int, guide: str) -> Diagnosis | None:
    """The ranks trained on batches of a rank's part of the size that was asked for.

    Args:
        seen: of a training with more in a rank's share than such a part.
        batch_size: what was asked for, of one rank.
        guide: the heading of GUIDELINES.md on batches.
    """
    largest = {max(value["sizes"], default=0) for value in seen}
    if largest != {max(1, batch_size // len(seen))} or largest == {batch_size}:
        return None
    text = (
        f"called with batch_size={batch_size}, {len(seen)} ranks train on batches of "
        f"{largest.pop()}: `batch_size` is that of one rank already, whatever their number"
    )
    return _found("batch-size-divided", text, guide, range(len(seen)))


def later_steps_differ(
    seen: Run, weights: Any, history: Sequence[Row], guide: str
) -> Diagnosis | None:
    """The first epoch's step is that of one process, and a later one is not.

    Args:
        seen: of a few epochs.
        weights: what one process ends with.
        history: of that process.
        guide: the heading of GUIDELINES.md on the training.
    """
    firsts = [row["val_loss"] for value in seen for row in value["history"][:1] if set(row) >= KEYS]
    ended_right = all(close(value["weights"], weights) for value in seen)
    if ended_right or not firsts or not close(firsts, [history[0]["val_loss"]] * len(firsts)):
        return None
    text = (
        f"after epoch 0 the model is that of one process, and after epoch {len(history) - 1} it is "
        "not: each step of each epoch is to be one of SGD, with the same `lr` from the first to "
        "the last, no decay, and nothing left of the gradients before"
    )
    return _found("differs-from-single-process", text, guide, range(len(seen)))


def other_counts(seen: Run, share: int, guide: str) -> Diagnosis | None:
    """A rank was trained on more samples than its share in all epochs, or on fewer."""
    counts = [len(value["trained"]) for value in seen]
    wrong = [rank for rank, count in enumerate(counts) if count != share]
    if not wrong:
        return None
    text = (
        f"in all epochs together rank {wrong[0]} trains on {counts[wrong[0]]} samples, where "
        f"its share is {share}: each once an epoch"
    )
    return _found("differs-from-single-process", text, guide, wrong)


def trained_in_evaluation_mode(seen: Run, guide: str) -> Diagnosis | None:
    """Models that came in evaluation mode were trained in it, if only on some samples."""
    wrong = [rank for rank, value in enumerate(seen) if sum(value["sizes"]) < len(value["trained"])]
    if not wrong:
        return None
    text = (
        "train was given a model in evaluation mode, as it is after an evaluation, and trained it "
        "in that mode: it has to be switched to training mode first, or dropout and BatchNorm do "
        "not train"
    )
    return _found("mode-not-restored", text, guide, wrong)


def _found(code: str, text: str, guide: str, ranks: Sequence[int] = ()) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text}", guide=guide)
