"""Mistakes in a whole training, known by its samples, weights, history and lines, a dict a rank.

What a rank came to is as `gradsync.probes.training.spied_training` tells it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import differs_from_one_process, would_be
from gradsync.diagnose.shares import some
from gradsync.diagnose.values import close
from gradsync.records import Diagnosis

HISTORY = {
    "train_loss": "the mean loss over the samples trained on, as they were when each batch came",
    "val_loss": "the loss over the validation samples after the epoch's training",
    "val_accuracy": "the accuracy, from 0 to 1, over the validation samples after the training",
}
KEYS = {"epoch", *HISTORY}
Run = Sequence[Mapping[str, Any]]


def other_samples(
    seen: Run, reseeded: Run, *, samples: int, shares: str, epochs: str, guide: str
) -> Diagnosis | None:
    """Two ranks' epochs are not over shares of all samples, or in the order of an earlier one.

    Args:
        seen: of two epochs.
        reseeded: of one epoch, with another seed.
        samples: of the training set, which the two ranks share evenly.
        shares: the heading of GUIDELINES.md on who gets which samples.
        epochs: the one on telling the sampler the epoch.
        guide: the one on `seed`.
    """
    size = samples // 2
    drawn = [value["drawn"] for value in seen]
    first = [indices[:size] for indices in drawn]
    second = [indices[len(indices) // 2 :][:size] for indices in drawn]
    both = sorted(set(first[0]) & set(first[1]))
    if len(both) == size and len(drawn[0]) <= samples:
        text = (
            f"in the first epoch both ranks train on the same samples, {some(both)}: each is to "
            "have its own share"
        )
        return _found("same-shard-on-every-rank", text, shares, range(2))
    if sorted(first[0] + first[1]) != list(range(samples)):
        text = (
            "in the first epoch the ranks do not train on shares that are disjoint and cover all "
            f"{samples} samples: of their first {size}, {len(both)} are the same"
        )
        return _found("sampler-not-used", text, shares, range(2))
    if first == second:
        text = (
            "the second epoch goes over the samples in the order of the first: nobody told the "
            "sampler that a new epoch began"
        )
        return _found("epoch-not-set", text, epochs, range(2))
    if first == [value["drawn"][:size] for value in reseeded]:
        text = "with another `seed` train goes over the samples in the same order"
        return _found("seed-ignored", text, guide, range(2))
    return None


def models_differ(seen: Run, guide: str) -> Diagnosis | None:
    """The ranks do not end with one and the same model."""
    if all(close(value["weights"], seen[0]["weights"]) for value in seen):
        return None
    text = (
        "after training the ranks have different models: they must start from rank 0's weights "
        "and make the same steps"
    )
    return _found("models-differ", text, guide, range(len(seen)))


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
        weights_after: what one process ends with that starts from this rank's weights, after one
            step that is so many times as long.
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
            f"the step was {world_size} times too long, as if gradients were summed over "
            f"{world_size} ranks and not averaged, or the learning rate multiplied by their number",
            mean,
            scale=float(world_size),
        ),
        rule(
            "does-not-learn",
            "after an epoch the model's weights are those from before: no step was taken, or of "
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


def other_rows(thrice: Run, guide: str) -> Diagnosis | None:
    """The history of three epochs has other entries than the contract's, or other keys."""
    for value in thrice:
        rows = value["history"]
        if all(set(row) == KEYS for row in rows) and [row["epoch"] for row in rows] == [0, 1, 2]:
            continue
        text = (
            f"train over 3 epochs returns {rows}: an entry an epoch is wanted, counted from 0, "
            f"with {', '.join(sorted(KEYS))}"
        )
        return _found("wrong-signature", text, guide)
    return None


def other_numbers(
    once: Run, right: Mapping[str, float], before: float, *, guide: str, evaluation: str
) -> Diagnosis | None:
    """The numbers of the first epoch are not those of one process.

    Args:
        once: of one epoch.
        right: that epoch's entry.
        before: the loss over the validation samples before the training.
        guide: the heading of GUIDELINES.md on the training.
        evaluation: the one on the validation samples.
    """
    row = once[0]["history"][0]
    for name, wanted in HISTORY.items():
        if all(close(value["history"][0][name], right[name]) for value in once):
            continue
        early = ", but that of the model before it" if close(row[name], before) else ""
        text = (
            f"`{name}` of the first epoch is {row[name]:.6g} on rank 0: that is not {wanted}{early}"
        )
        heading = guide if name == "train_loss" else evaluation
        return _found("differs-from-single-process", text, heading, range(len(once)))
    return None


def other_lines(seen: Run, epochs: int, guide: str) -> Diagnosis | None:
    """Not rank 0 alone printed a line an epoch."""
    printed = [value["lines"] for value in seen]
    loud = [rank for rank, lines in enumerate(printed) if lines and rank > 0]
    if loud:
        text = (
            f"rank {' and '.join(map(str, loud))} printed during training, for one "
            f"{printed[max(loud)][:1]}: with hundreds of ranks nobody could read that. Rank 0 "
            "speaks for all"
        )
        return _found("every-rank-prints", text, guide, loud)
    if len(printed[0]) != epochs:
        text = (
            f"rank 0 printed {len(printed[0])} lines during {epochs} epochs: a line an epoch is "
            "wanted"
        )
        return _found("every-rank-prints", text, guide, [0])
    return None


def _found(code: str, text: str, guide: str, ranks: Sequence[int] = ()) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text} (GUIDELINES, {guide})", guide=guide)
