"""Mistakes in evaluating a model, for any way of sharing out the samples.

A run has a dict for each rank: the result, or a report of
`support.probes.evaluation.spied_evaluation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import FORGOTTEN, listed, ranks_text
from support.rules.findings import found
from support.rules.reductions import last_reduce

KEYS = {"loss", "accuracy", "samples"}
LEFT_ALONE = {  # a key of a rank's report: the message if its value is false
    "kept_grad": (
        "evaluate changes the gradients of the parameters. They belong to the training and must "
        "stay as they were."
    ),
    "kept_frozen": (
        "After evaluate, a different set of parameters is trainable. Leave `requires_grad` as it "
        "was, or the next training step updates other parameters."
    ),
}


def pairs(result: Mapping[str, float]) -> str:
    """Return "loss 0.5, accuracy 1, samples 8"."""
    return ", ".join(f"{name} {value:.4g}" for name, value in result.items())


def other_keys(results: Sequence[Mapping[str, float]], guide: str) -> Diagnosis | None:
    """Recognise a result that is not a dict, or that lacks a required key."""
    wrong = [rank for rank, result in enumerate(results) if not set(result) >= KEYS]
    if not wrong:
        return None
    without = [rank for rank in wrong if not results[rank]]
    if without and len(without) < len(results):
        text = (
            f"evaluate returns nothing on {ranks_text(without)}. It must return the same dict on "
            "every rank: is `return` inside an `if`?"
        )
        return found("only-one-rank-has-it", text, guide, without)
    keys = ", ".join(map(repr, sorted(results[wrong[0]])))
    text = (
        f"evaluate returns {f'a dict with the keys {keys}' if keys else 'nothing'}. It must return "
        "a dict with the keys 'loss', 'accuracy' and 'samples'; more keys are allowed."
    )
    if not keys:
        text += f" {FORGOTTEN}"
    return found("wrong-signature", text, guide, wrong)


def own_samples_alone(own: Sequence[Mapping[str, float]], guide: str) -> Rule:
    """Return the rule for ranks that return the numbers of only their own samples (`own`)."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        if len(seen) < 2 or not close(list(seen), list(own)):
            return None
        text = f"Every rank returns the numbers of its own samples, {pairs(seen[0])} on rank 0. "
        where = last_reduce(seen)
        if where is None:
            text += "Sum them over all ranks."
        else:
            text += (
                f"They were summed over the ranks at {where}, but evaluate does not return that "
                "sum. The sum is in the tensor that was reduced, and only when the collective is "
                "complete: wait for it before you read the tensor."
            )
        ranks = tuple(range(len(seen)))
        return Diagnosis("loss-is-local", ranks, text, where, guide)

    return rule


def differs_across_ranks(guide: str) -> Rule:
    """Return the rule for numbers that are not the same on every rank."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if all(close(result, seen[0]) for result in seen):
            return None
        shown = f"{pairs(seen[0])} on rank 0 and {pairs(seen[-1])} on rank {len(seen) - 1}"
        if all(_right_but_for(result, expected[0], "samples") for result in seen):
            text = (
                f"The loss and the accuracy are right, but `samples` differs between ranks: "
                f"{shown}. It must count the samples of all ranks."
            )
            return found("loss-is-local", text, guide, range(len(seen)))
        if close(seen[0], expected[0]):
            text = (
                f"Only rank 0 has the numbers of all ranks: evaluate returns {shown}. It must "
                "return them on every rank."
            )
            return found("only-one-rank-has-it", text, guide, range(1, len(seen)))
        if by_own := _divided_by_their_own(seen, expected[0], guide):
            return by_own
        text = (
            f"evaluate returns different numbers on different ranks: {shown}. Sum over all ranks."
        )
        return found("loss-is-local", text, guide, range(len(seen)))

    return rule


def _divided_by_their_own(
    seen: Observation, right: Mapping[str, float], guide: str
) -> Diagnosis | None:
    """Recognise right sums that each rank divides by a different number."""
    divisors = [_divisor(result, right) for result in seen]
    if None in divisors or len(set(divisors)) == 1:
        return None
    text = (
        f"The sums over the ranks are right, but {ranks_text(range(len(seen)))} divide them by "
        f"{listed(divisors)} instead of {right['samples']:g}. Sum the number of samples over the "
        "ranks too."
    )
    wrong = [rank for rank, number in enumerate(divisors) if number != right["samples"]]
    return found("differs-from-single-process", text, guide, wrong)


def _divisor(result: Mapping[str, float], right: Mapping[str, float]) -> int | None:
    """Return the number that divided the sums of all samples, in the loss or the accuracy."""
    total = right["samples"]
    ratios = [right[name] * total / result[name] for name in ("loss", "accuracy") if result[name]]
    for number in {round(ratio) for ratio in ratios if math.isfinite(ratio)} - {0}:
        divided = {name: right[name] * total / number for name in ("loss", "accuracy")}
        divided["samples"] = number
        if all(
            close(result[name], right[name]) or close(result[name], divided[name]) for name in KEYS
        ):
            return number
    return None


def kept_from_before(
    again: Sequence[Mapping[str, float]], expected: Mapping[str, float], guide: str
) -> Diagnosis | None:
    """Recognise a wrong second evaluation, with other samples, after a right first one."""
    wrong = [rank for rank, result in enumerate(again) if not close(result, expected)]
    if not wrong:
        return None
    advice = (
        "Do not keep values from earlier calls, for example in a default argument: start every sum "
        "at zero, and use only the loader that is passed."
    )
    if all(_right_but_for(again[rank], expected, "accuracy") for rank in wrong):
        advice = "A sample's predicted class is the one with the largest of the sample's outputs."
    text = (
        f"The first call of evaluate is right, but a second call with other samples returns "
        f"{pairs(again[wrong[0]])}. It should return {pairs(expected)}. {advice}"
    )
    return found("differs-from-single-process", text, guide, wrong)


def predicts_otherwise(guide: str) -> Rule:
    """Return the rule for a wrong accuracy if the loss and the number of samples are right."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        both = zip(seen, expected, strict=True)
        if not all(_right_but_for(result, wanted, "accuracy") for result, wanted in both):
            return None
        number, right = seen[0]["accuracy"], expected[0]["accuracy"]
        scaled = {100.0: "a percentage", seen[0]["samples"]: "the number of correct samples"}
        what = next((what for by, what in scaled.items() if close(number, by * right)), None)
        if what is not None:
            text = (
                f"evaluate returns {what} as the accuracy, {number:.4g}. Return the share of "
                f"correct samples, from 0 to 1: here it is {right:.4g}."
            )
            return found("differs-from-single-process", text, guide, range(len(seen)))
        text = (
            f"evaluate returns {pairs(seen[0])}. The loss and the number of samples are right, but "
            "the accuracy is not the share of correctly classified samples. The predicted class of "
            "a sample is the class with the largest output of this sample: compare along dimension "
            "1 only."
        )
        return found("differs-from-single-process", text, guide, range(len(seen)))

    return rule


def evaluated_too_few(
    seen: Sequence[Mapping[str, Any]], counts: Sequence[int], guide: str
) -> Diagnosis | None:
    """Recognise a model that runs on fewer samples than the ranks' loaders yield (`counts`)."""
    ran = [sum(call["samples"] for call in value["calls"]) for value in seen]
    wrong = [rank for rank, count in enumerate(counts) if ran[rank] < count]
    if not any(ran):
        return _never_run(guide)
    if not wrong:
        return None
    text = (
        f"evaluate runs the model on {ran[wrong[0]]} samples on rank {wrong[0]}, but the loader "
        f"there yields {counts[wrong[0]]}. Evaluate every sample."
    )
    return found("samples-dropped", text, guide, wrong)


def learned_from(seen: Sequence[Mapping[str, Any]], guide: str) -> Diagnosis | None:
    """Recognise training mode, gradient tracking, changed gradients, or no run of the model."""
    calls = [call for value in seen for call in value["calls"]]
    if not calls:
        return _never_run(guide)
    if any(any(call["training"]) for call in calls):
        whole = any(call["training"][0] for call in calls)
        what = "the model in training mode" if whole else "a layer of the model in training mode"
        text = (
            f"evaluate runs {what}, where dropout and BatchNorm behave as in training. Switch the "
            "model to evaluation mode first."
        )
        if not whole:
            text += " `model.eval()` switches all layers."
        return found("mode-not-restored", text, guide)
    if any(call["tracked"] for call in calls):
        text = (
            "evaluate runs the model with gradient tracking. It needs no gradients, and tracking "
            "wastes memory: turn it off for the evaluation."
        )
        return found("gradients-touched", text, guide)
    for kept, text in LEFT_ALONE.items():
        changed = [rank for rank, value in enumerate(seen) if not value[kept]]
        if changed:
            return found("gradients-touched", text, guide, changed)
    return None


def mode_not_restored(seen: Sequence[Mapping[str, Any]], guide: str) -> Diagnosis | None:
    """Recognise a changed mode, gradient tracking or loss function, or no run of the model."""
    if not any(value["calls"] for value in seen):
        return _never_run(guide)
    if switched := _switched(seen, guide):
        return switched
    wrong = [rank for rank, value in enumerate(seen) if not value["kept_tracking"]]
    if wrong:
        text = (
            "After evaluate, gradient tracking is off. Restore it: the caller's next step may be a "
            "training step."
        )
        return found("mode-not-restored", text, guide, wrong)
    return _loss_changed(seen, guide)


def _switched(seen: Sequence[Mapping[str, Any]], guide: str) -> Diagnosis | None:
    wrong = [rank for rank, value in enumerate(seen) if value["switched"]]
    if not wrong:
        return None
    if not any("" in seen[rank]["switched"] for rank in wrong):
        names = ", ".join(seen[wrong[0]]["switched"])
        text = (
            f"evaluate restores the mode of the model, but not of the module {names} in it, on "
            f"{ranks_text(wrong)}. Each module has its own mode, and `model.train()` switches all "
            "of them. For example, a frozen BatchNorm stays in evaluation mode while the model "
            "trains. Save the mode of each of `model.modules()` and restore it."
        )
    else:
        modes = {  # modes before and after evaluate: the ranks, as the probe sets them
            ("training", "evaluation"): [rank for rank in wrong if rank != 1],
            ("evaluation", "training"): [rank for rank in wrong if rank == 1],
        }
        parts = [
            f"On {ranks_text(ranks)}, the model was in {before} mode before evaluate and in "
            f"{after} mode after it."
            for (before, after), ranks in modes.items()
            if ranks
        ]
        text = f"{' '.join(parts)} Save the mode before the evaluation and restore it afterwards."
    return found("mode-not-restored", text, guide, wrong)


def _right_but_for(result: Mapping[str, float], expected: Mapping[str, float], number: str) -> bool:
    return all(close(result[name], expected[name]) for name in KEYS - {number})


def _loss_changed(seen: Sequence[Mapping[str, Any]], guide: str) -> Diagnosis | None:
    wrong = [rank for rank, value in enumerate(seen) if value["reduction"] != "mean"]
    if not wrong:
        return None
    text = (
        f"evaluate leaves the loss function with reduction={seen[wrong[0]]['reduction']!r}, but "
        "it was 'mean' before the call. Later training would use a different step size. Restore "
        "it."
    )
    return found("mode-not-restored", text, guide, wrong)


def _never_run(guide: str) -> Diagnosis:
    """Return the diagnosis if the model was not run: then nothing else can be judged."""
    text = (
        "evaluate returned without running the model on any rank. Compute the numbers from the "
        "model's outputs for the samples."
    )
    return found("differs-from-single-process", text, guide)
