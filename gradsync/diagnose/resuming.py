"""What a training did that should have gone on where another one broke off, and did not.

It is known by its first weights, which the undisturbed training came by at some step, and by the
samples that it took, which should be those from that step on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.diagnose.values import close
from gradsync.records import Diagnosis
from gradsync.text import counted

GUIDE = "Resuming"


def resumed_wrongly(
    whole: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], interrupted: int
) -> Diagnosis:
    """Return what the second training did, given that it did not end as the undisturbed one.

    Args:
        whole: of each rank in an undisturbed training, `trained`, the samples in the order in which
            it took them, one a step, and `weights`, those before each step.
        second: the same of the training that went on.
        interrupted: samples of a rank that were trained on before the interruption.
    """
    taken, all_steps = len(second[0]["trained"]), len(whole[0]["trained"])
    start = all_steps - taken
    code, text = _explanation(whole, second, start)
    told = (
        f"training takes {all_steps} samples on each rank. It was interrupted after {interrupted}, "
        f"and the next call, with the file, took {taken}{text}"
    )
    return Diagnosis(code, tuple(range(len(second))), told, guide=GUIDE)


def _explanation(
    whole: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]], start: int
) -> tuple[str, str]:
    if not len(second[0]["trained"]):
        return "samples-missing", ""
    firsts = [one["weights"][0] for one in second if len(one["weights"])]
    steps = [n for n, weights in enumerate(whole[0]["weights"]) if close(firsts[0], weights)]
    if start <= 0:
        if not any(steps):
            return "resume-lost", ": it did not go on from the file"
        left = counted(len(whole[0]["weights"]) - steps[0], "step")
        return "samples-repeated", f": it went on with the weights before the last {left} alone"
    if not all(close(one, firsts[0]) for one in firsts):
        return "models-differ", " on rank 0, but the ranks went on with different weights"
    if not steps:
        return "resume-lost", (
            ", but began with weights that training never came by: the file's weights are not "
            "used, or are not those of the model as it was after a step"
        )
    if start != steps[0]:
        code = "samples-repeated" if start < steps[0] else "samples-missing"
        what = "some are trained on again" if start < steps[0] else "some are left out"
        return code, (
            f". It began with the weights after {steps[0]}, but with the samples after {start}: "
            f"{what}"
        )
    if any(s["trained"] != w["trained"][start:] for s, w in zip(second, whole, strict=True)):
        return "samples-repeated", (
            ". As many are left, but others than an undisturbed training takes there: some come "
            "again, some never. The order is that of the epoch, from where it broke off"
        )
    return "state-lost", (
        ", with the right weights and samples, and yet ends elsewhere than an undisturbed "
        "training: something else that the steps depend on was not kept. Steps of plain SGD depend "
        "on nothing else; momentum, or a rate that changes, has to be in the file, too"
    )


def beyond_epochs(second: Sequence[Mapping[str, Any]], epochs: int) -> Diagnosis | None:
    """The training that went on ended epochs which it was not called for, by its `history`."""
    last = max((round(row["epoch"]) for one in second for row in one["history"]), default=0)
    if last < epochs:
        return None
    text = (
        f"called for {epochs} epochs, 0 to {epochs - 1}, a training that went on from a file ended "
        f"epoch {last} as well: `epochs` counts those before the interruption, too"
    )
    return Diagnosis("samples-repeated", tuple(range(len(second))), text, guide=GUIDE)


def other_resumed_loss(
    second: Sequence[Mapping[str, Any]], whole: float, steps: int
) -> Diagnosis | None:
    """The train loss of the epoch that was resumed is of neither that epoch nor what was left.

    Args:
        second: of each rank in the training that went on, the `losses` of its steps, and its
            `history`.
        whole: the train loss of that epoch in an undisturbed training.
        steps: of a rank, that were left of that epoch.
    """
    losses = [loss for one in second for loss in one["losses"][:steps]]
    rest = sum(losses) / len(losses)
    told = [one["history"][0]["train_loss"] for one in second]
    if all(close(own, whole) or close(own, rest) for own in told):
        return None
    text = (
        f"`train_loss` of the epoch that training was resumed in is {told[0]:.4g}. The mean over "
        f"the epoch is {whole:.4g}, and over what came after the interruption {rest:.4g}: the file "
        "has to hold the running sum of the losses along with the samples that it is of"
    )
    return Diagnosis("state-lost", (), text, guide=GUIDE)
