"""Mistakes in a training run that should continue where an earlier one was interrupted.

They are recognised by two things. The first weights should be the weights of a training run without
interruption at some step, and the samples should be the samples that follow that step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.records import Diagnosis
from gradsync.testing.values import close
from gradsync.text import counted, listed

GUIDE = "Resuming"


def resumed_wrongly(
    whole: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], interrupted: int
) -> Diagnosis:
    """Return the diagnosis of a resumed training run that ended with the wrong weights.

    Args:
        whole: for each rank of a training run without interruption: `trained`, the samples in the
            order in which they were used, one per step; `weights`, before each step; and, if known,
            `states`, what its optimizer kept before each step.
        second: the same for the resumed training run.
        interrupted: the number of samples that a rank used before the interruption.
    """
    taken, all_steps = len(second[0]["trained"]), len(whole[0]["trained"])
    start = all_steps - taken
    code, text = _explanation(whole, second, start)
    ranks = tuple(range(len(second)))
    text = (
        f"Without an interruption, each rank uses {all_steps} samples. This training run was "
        f"interrupted after {interrupted}, and the resumed call used {taken}. {text}"
    )
    return Diagnosis(code, ranks, text, guide=GUIDE)


def _explanation(
    whole: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], start: int
) -> tuple[str, str]:
    if not len(second[0]["trained"]):
        return "samples-missing", "The resumed call must use the remaining samples."
    firsts = [one["weights"][0] for one in second if len(one["weights"])]
    steps = [n for n, weights in enumerate(whole[0]["weights"]) if close(firsts[0], weights)]
    if start <= 0:
        if not any(steps):
            return "resume-lost", (
                "The resumed call did not continue from the file. Before the first step, load the "
                "weights and the position from it."
            )
        left = counted(len(whole[0]["weights"]) - steps[0], "step")
        return "samples-repeated", (
            f"The resumed call continued with the weights before the last {left}, but did not skip "
            "the samples used before."
        )
    if not all(close(one, firsts[0]) for one in firsts):
        return "models-differ", (
            "The ranks continued with different weights. Every rank must start with the weights "
            "in the file."
        )
    if not steps:
        return "resume-lost", (
            "The resumed call started with weights that a training run without interruption never "
            "has: the weights in the file are not used, or are not the weights after a step."
        )
    if start != steps[0]:
        code = "samples-repeated" if start < steps[0] else "samples-missing"
        what = "used again" if start < steps[0] else "left out"
        return code, (
            f"The resumed call loaded the weights that the model had after "
            f"{counted(steps[0], 'sample')}, but its data continues after sample {start}: some "
            f"samples are {what}. Save the position together with the weights."
        )
    if any(s["trained"] != w["trained"][start:] for s, w in zip(second, whole, strict=True)):
        return "samples-repeated", (
            "The number of samples is right, but some are repeated and some are missing. The "
            "resumed call must continue in the same epoch's order, after the last sample that was "
            "used before the interruption."
        )
    text = (
        "Its first weights and its samples are right, but its final weights differ from the "
        "weights of a training run without interruption."
    )
    kept = {name for one in whole for names in one.get("states", ())[-1:] for name in names}
    if kept and not any(one["states"][0] for one in second):
        return "state-lost", (
            f"{text} Its optimizer keeps {listed(f'`{name}`' for name in sorted(kept))} for each "
            "parameter, but started without. Save the optimizer's `state_dict()` too."
        )
    return "state-lost", (
        f"{text} Save everything that a step depends on, for example momentum and a changing "
        "learning rate."
    )


def beyond_epochs(second: Sequence[Mapping[str, Any]], epochs: int) -> Diagnosis | None:
    """Recognise a resumed training run whose `history` has more epochs than it was called with."""
    last = max((round(row["epoch"]) for one in second for row in one["history"]), default=0)
    if last < epochs:
        return None
    text = (
        f"With epochs={epochs}, a training run that was resumed from a file trained up to epoch "
        f"{last}. `epochs` includes the epochs before the interruption, so the last epoch is "
        f"{epochs - 1}."
    )
    return Diagnosis("samples-repeated", tuple(range(len(second))), text, guide=GUIDE)


def other_resumed_loss(
    second: Sequence[Mapping[str, Any]], whole: float, steps: int
) -> Diagnosis | None:
    """Return the diagnosis if the train loss of the resumed epoch is wrong.

    It may be the mean over the complete epoch, or over the samples after the interruption.

    Args:
        second: for each rank of the resumed training run, the `losses` of its steps, and its
            `history`.
        whole: the train loss of that epoch in a training run without interruption.
        steps: the number of steps of a rank in that epoch after the interruption.
    """
    losses = [loss for one in second for loss in one["losses"][:steps]]
    rest = sum(losses) / len(losses)
    returned = [one["history"][0]["train_loss"] for one in second]
    if all(close(own, whole) or close(own, rest) for own in returned):
        return None
    text = (
        f"`train_loss` of the resumed epoch is {returned[0]:.4g}. It must be the mean over the "
        f"complete epoch, {whole:.4g}, or over the samples after the interruption, {rest:.4g}. "
        "Save the sum of the losses so far, together with the number of samples in it."
    )
    return Diagnosis("state-lost", (), text, guide=GUIDE)
