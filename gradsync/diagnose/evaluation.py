"""Mistakes in evaluating a model, however the samples are shared out. Values are a dict a rank.

What a rank did is as `gradsync.probes.evaluation.spied_evaluation` tells it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.gradients import last_reduce
from gradsync.diagnose.values import close
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text

KEYS = {"loss", "accuracy", "samples"}
LEFT_ALONE = {  # what a rank tells of it, and what is said where it is not so
    "kept_grad": (
        "the parameters have other gradients than before: they belong to the training, and stay "
        "as they are"
    ),
    "kept_frozen": (
        "another set of parameters is trainable than before: `requires_grad` is the training's, "
        "and without it, or for all, the next step is another one"
    ),
}


def told(result: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in result.items())


def other_keys(results: Sequence[Mapping[str, float]], guide: str) -> Diagnosis | None:
    """A rank returned no dict, or one without a key that the contract names."""
    wrong = [rank for rank, result in enumerate(results) if not set(result) >= KEYS]
    if not wrong:
        return None
    without = [rank for rank in wrong if not results[rank]]
    if without and len(without) < len(results):
        text = f"evaluate returns nothing on {ranks_text(without)}. Every rank needs the numbers"
        return _found("only-one-rank-has-it", text, guide, without)
    keys = ", ".join(map(repr, sorted(results[wrong[0]])))
    text = (
        f"evaluate returns {f'a dict with the keys {keys}' if keys else 'nothing'}. A dict with "
        "the keys 'loss', 'accuracy' and 'samples' is wanted; more keys are allowed"
    )
    return _found("wrong-signature", text, guide, wrong)


def own_samples_alone(own: Sequence[Mapping[str, float]], guide: str) -> Rule:
    """Return the rule for ranks that return the numbers of their own samples, given by rank."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        if len(seen) < 2 or not close(list(seen), list(own)):
            return None
        text = f"every rank returns the numbers of its own samples, {told(seen[0])} on rank 0"
        where = last_reduce(seen)
        if where is None:
            text += ": sum over all ranks"
        else:
            text += (
                f". What the ranks came to at {where} made their sum, but that is not what is "
                "returned: it is in the tensor that was reduced, and only once that is complete. "
                "One that is read before it was waited for still has the rank's own numbers"
            )
        ranks = tuple(range(len(seen)))
        text = f"{text}"
        return Diagnosis("loss-is-local", ranks, text, where, guide)

    return rule


def differs_across_ranks(guide: str) -> Rule:
    """Return the rule for numbers that are not the same on every rank."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if all(close(result, seen[0]) for result in seen):
            return None
        shown = f"{told(seen[0])} on rank 0 and {told(seen[-1])} on rank {len(seen) - 1}"
        if close(seen[0], expected[0]):
            text = f"rank 0 alone has the numbers of all ranks: evaluate returns {shown}. Every "
            text += "rank is to have them"
            return _found("only-one-rank-has-it", text, guide, range(1, len(seen)))
        if by_own := _divided_by_their_own(seen, expected[0], shown, guide):
            return by_own
        if all(_right_but_for(result, expected[0], "samples") for result in seen):
            text = (
                f"loss and accuracy are right, but `samples` is another on other ranks, {shown}: "
                "it counts what the loaders of all ranks gave"
            )
            return _found("loss-is-local", text, guide, range(len(seen)))
        text = f"evaluate returns other numbers on other ranks, {shown}: sum over all ranks"
        return _found("loss-is-local", text, guide, range(len(seen)))

    return rule


def _divided_by_their_own(
    seen: Observation, right: Mapping[str, float], shown: str, guide: str
) -> Diagnosis | None:
    """The sums are those of all ranks, but each rank divides them by a number of its own."""
    divisors = [_divisor(result, right) for result in seen]
    if None in divisors or len(set(divisors)) == 1:
        return None
    text = (
        f"evaluate returns other numbers on other ranks, {shown}. The sums are those of all ranks, "
        f"but they are divided by {', '.join(map(str, divisors))}, by rank, where "
        f"{right['samples']:g} samples came: the number of samples is a sum over the ranks as well"
    )
    wrong = [rank for rank, number in enumerate(divisors) if number != right["samples"]]
    return _found("differs-from-single-process", text, guide, wrong)


def _divisor(result: Mapping[str, float], right: Mapping[str, float]) -> int | None:
    """Return by what the sums of all samples were divided, in the loss or the accuracy."""
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
    """A second evaluation, of other samples, is wrong though the first was right."""
    wrong = [rank for rank, result in enumerate(again) if not close(result, expected)]
    if not wrong:
        return None
    text = (
        "evaluate is right at first, but called once more, with other samples, it returns "
        f"{told(again[wrong[0]])}, where {told(expected)} is right: nothing may be kept from call "
        "to call. Sums begin at zero, also those in a default argument, and the samples are those "
        "that this call is given"
    )
    return _found("differs-from-single-process", text, guide, wrong)


def predicts_otherwise(guide: str) -> Rule:
    """Return the rule for an accuracy that is another, where loss and samples are right."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        pairs = zip(seen, expected, strict=True)
        if not all(_right_but_for(result, wanted, "accuracy") for result, wanted in pairs):
            return None
        text = (
            f"evaluate returns {told(seen[0])}: loss and samples are right, but that accuracy is "
            "not the share of samples that are classified right. A sample's class is the one with "
            "its largest output"
        )
        return _found("differs-from-single-process", text, guide, range(len(seen)))

    return rule


def evaluated_too_few(
    seen: Sequence[Mapping[str, Any]], counts: Sequence[int], guide: str
) -> Diagnosis | None:
    """The model was run on fewer samples than the ranks' loaders gave, a number for each rank."""
    ran = [sum(call["samples"] for call in value["calls"]) for value in seen]
    wrong = [rank for rank, count in enumerate(counts) if ran[rank] < count]
    if not any(ran):
        return _never_run(guide)
    if not wrong:
        return None
    text = (
        f"evaluate runs the model on {ran[wrong[0]]} samples on rank {wrong[0]}, whose loader "
        f"gives {counts[wrong[0]]}: every sample has to be evaluated"
    )
    return _found("samples-dropped", text, guide, wrong)


def learned_from(seen: Sequence[Mapping[str, Any]], guide: str) -> Diagnosis | None:
    """The model ran in training mode or with gradients, lost its own, or was not run at all."""
    calls = [call for value in seen for call in value["calls"]]
    if not calls:
        return _never_run(guide)
    if any(any(call["training"]) for call in calls):
        whole = any(call["training"][0] for call in calls)
        what = "the model in training mode" if whole else "a layer of the model in training mode"
        text = f"evaluate runs {what}, in which dropout and BatchNorm do not do what they do in use"
        if not whole:
            text += ": the mode is that of the model and of everything in it"
        return _found("mode-not-restored", text, guide)
    if any(call["tracked"] for call in calls):
        text = (
            "evaluate runs the model with gradients tracked: nothing is learned from it, and the "
            "memory that they take is wasted"
        )
        return _found("gradients-touched", text, guide)
    for kept, text in LEFT_ALONE.items():
        changed = [rank for rank, value in enumerate(seen) if not value[kept]]
        if changed:
            return _found("gradients-touched", f"after evaluate {text}", guide, changed)
    return None


def mode_not_restored(seen: Sequence[Mapping[str, Any]], guide: str) -> Diagnosis | None:
    """The model, torch or the loss is not left as it came; or the model was not run at all."""
    if not any(value["calls"] for value in seen):
        return _never_run(guide)
    if switched := _switched(seen, guide):
        return switched
    wrong = [rank for rank, value in enumerate(seen) if not value["kept_tracking"]]
    if wrong:
        text = (
            "after evaluate, tracking of gradients is off: it belongs to the caller, whose next "
            "step may be one of training"
        )
        return _found("mode-not-restored", text, guide, wrong)
    return _loss_changed(seen, guide)


def _switched(seen: Sequence[Mapping[str, Any]], guide: str) -> Diagnosis | None:
    wrong = [rank for rank, value in enumerate(seen) if value["switched"]]
    if not wrong:
        return None
    if not any("" in seen[rank]["switched"] for rank in wrong):
        names = ", ".join(seen[wrong[0]]["switched"])
        text = (
            f"evaluate leaves the model in its former mode, but not the module {names} in it, on "
            f"{ranks_text(wrong)}. Each module has a mode of its own (a frozen BatchNorm stays in "
            "evaluation mode while the model trains), and `model.train()` switches all of them: "
            "note the mode of each of `model.modules()` and restore it"
        )
    else:
        was = " and ".join(f"rank {r} ({'training' if r != 1 else 'evaluation'})" for r in wrong)
        text = f"after evaluate the model is not in the mode that it came in, on {was}"
    return _found("mode-not-restored", text, guide, wrong)


def _right_but_for(result: Mapping[str, float], expected: Mapping[str, float], number: str) -> bool:
    return all(close(result[name], expected[name]) for name in KEYS - {number})


def _loss_changed(seen: Sequence[Mapping[str, Any]], guide: str) -> Diagnosis | None:
    wrong = [rank for rank, value in enumerate(seen) if value["reduction"] != "mean"]
    if not wrong:
        return None
    text = (
        f"evaluate leaves the loss function with reduction={seen[wrong[0]]['reduction']!r}, where "
        "it came with 'mean': who trains with it afterwards takes steps of another length"
    )
    return _found("mode-not-restored", text, guide, wrong)


def _never_run(guide: str) -> Diagnosis:
    """What is left alone besides tells of no evaluation."""
    text = (
        "evaluate returned without having run the model on any rank: what comes out of it is to be "
        "measured on the samples"
    )
    return _found("differs-from-single-process", text, guide)


def _found(code: str, text: str, guide: str, ranks: Sequence[int] = ()) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text}", guide=guide)
