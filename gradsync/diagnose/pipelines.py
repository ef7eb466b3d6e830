"""Mistakes in a pipeline's step, known by its gradients, its losses and its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import last_line, would_be
from gradsync.diagnose.differences import told_difference
from gradsync.diagnose.values import array, close
from gradsync.diagnose.vectors import common_factor
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text

GUIDE = "Pipelines"
# What was done to the microbatches -> the code, and what gradients it leaves.
GRADIENTS = {
    "equally": (
        "microbatch-mean-unweighted",
        "the gradients are those of the mean of the microbatches' losses, each weighing the same: "
        "a microbatch of more samples has to weigh more",
    ),
    "summed": (
        "microbatch-mean-unweighted",
        "the gradients are those of the sum of the microbatches' mean losses: that is not the "
        "mean over the whole batch, but larger",
    ),
    "last": (
        "differs-from-single-process",
        "the gradients are those of one microbatch alone: what the other microbatches gave is lost",
    ),
    "kept": (
        "gradients-not-zeroed",
        "what was in `grad` when the step began is in the gradients of this step: they are to be "
        "cleared for each step",
    ),
    "crossed": (
        "microbatch-order",
        "gradients that come back from the next rank meet the activations of another microbatch: "
        "both ends have to go through the microbatches in one and the same order",
    ),
}


def pipeline_gradient_mistakes(ended: Sequence[tuple[str, Sequence[Any]]]) -> list[Rule]:
    """Return the rules for the stages' gradients after a step.

    Args:
        ended: what may have been done, a key of GRADIENTS, and each rank's gradients then.
    """
    known = [would_be(by_rank, *GRADIENTS[what], GUIDE) for what, by_rank in ended]
    return [nothing_left, *known, scaled_by_ranks, other_gradients]


def scaled_by_ranks(seen: Observation, expected: Any) -> Diagnosis | None:
    """Know gradients that were divided by the number of ranks, or multiplied by it."""
    size = len(seen)
    factor = common_factor(list(seen), list(expected or ())) if size > 1 else None
    for code, wrong, text in (
        ("divided-twice", 1 / size, f"{size} times too small: something is divided"),
        ("sum-not-mean", float(size), f"{size} times too large: something is multiplied"),
    ):
        if factor is not None and close(factor, wrong):
            told = (
                f"the gradients of every stage are exactly {text} by the number of ranks. The last "
                "rank alone has the loss, of the whole batch, and the stages have different "
                "parameters: nothing is a mean or a sum over ranks"
            )
            return Diagnosis(code, tuple(range(size)), told, last_line(seen), GUIDE)
    return None


def stepped_in_between(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Know a run that ended in a backward through parameters which a step had changed."""
    failure = seen.failure
    if failure is None or "modified by an inplace operation" not in (failure.detail or ""):
        return None
    said = f"{failure.exception}: {failure.detail}"
    text = (
        f"{ranks_text(failure.diagnosis.ranks)} can't go backward: a parameter was changed after "
        "the forward pass that this backward belongs to. optimizer.step() comes once, after the "
        f"backward passes of all microbatches ({said})"
    )
    return replace(failure.diagnosis, code="accumulation-ignored", explanation=text, guide=GUIDE)


def stages_summed(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Know a run that stands still in a sum of the gradients of different stages."""
    failure = seen.failure
    call = failure.collective if failure is not None else None
    if failure is None or call is None or call.op != "all_reduce":
        return None
    if not (call.label or "").endswith(".grad"):
        return None
    together = all(c and c[-1].op == call.op for c in map(seen.collectives, range(seen.world_size)))
    text = (
        f"{failure.diagnosis.explanation} Each stage has parameters of its own, which no other "
        "rank has: their gradients are whole once backward has gone through all microbatches, and "
        "are not to be added up over the ranks"
    )
    code = "shape-mismatch" if together else failure.diagnosis.code
    return replace(failure.diagnosis, code=code, explanation=text, guide=GUIDE)


def nothing_left(seen: Observation, expected: Any) -> Diagnosis | None:
    """Know gradients that are None or zero where they should not be."""
    if expected is None:
        return None
    empty = tuple(
        rank
        for rank, wanted in enumerate(expected)
        if any(_is_empty(seen[rank].get(n)) and not _is_empty(wanted[n]) for n in wanted)
    )
    if not empty:
        return None
    text = (
        "after the step a parameter's gradient is None or zero. Gradients stay readable after the "
        "step, and backward has to come through every stage, also one whose gradient arrives from "
        "another rank"
    )
    return Diagnosis("differs-from-single-process", empty, text, last_line(seen), GUIDE)


def other_gradients(seen: Observation, expected: Any) -> Diagnosis | None:
    """Say that gradients differ and no more, where no known mistake makes such gradients."""
    if expected is None:
        return None
    wrong = tuple(rank for rank, wanted in enumerate(expected) if not close(seen[rank], wanted))
    text = (
        f"{ranks_text(wrong)}: the gradients after the step "
        "are not those of the unsplit model on the whole batch"
        f"{told_difference(list(seen), expected)}"
    )
    return Diagnosis("differs-from-single-process", wrong, text, last_line(seen), GUIDE)


def kept_on_some_ranks(kept: Sequence[Any]) -> Rule:
    """Return the rule for weights that some stages, or all, have where gradients are not cleared.

    Args:
        kept: by rank, the weights after steps with the gradients of all earlier ones added in.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = [rank for rank, wanted in enumerate(expected) if not close(seen[rank], wanted)]
        if not all(close(seen[rank], kept[rank]) for rank in wrong):
            return None
        text = (
            f"{ranks_text(wrong)}: the weights are those of steps with the gradients of all "
            "earlier steps added in: every stage has to clear them for each step"
        )
        return Diagnosis("gradients-not-zeroed", tuple(wrong), text, guide=GUIDE)

    return rule


def pipeline_loss_mistakes(equally: float, summed: float) -> list[Rule]:
    """Return the rules for the losses returned, given those of microbatches weighed wrongly."""

    def not_told(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or len(seen) == 1 or not close(seen[-1], expected[-1]):
            return None
        wrong = tuple(rank for rank, wanted in enumerate(expected) if not close(seen[rank], wanted))
        text = (
            "the last rank alone returns the batch's loss, since it alone has the targets: the "
            "other ranks are to return it too"
        )
        return Diagnosis("loss-is-local", wrong, text, last_line(seen), GUIDE)

    def weighed(wrong: float, text: str) -> Rule:
        def rule(seen: Observation, expected: Any) -> Diagnosis | None:
            same = expected is not None and close(seen[-1], wrong)
            ranks = tuple(range(len(seen)))
            told = f"{text}"
            code = "microbatch-mean-unweighted"
            return Diagnosis(code, ranks, told, last_line(seen), GUIDE) if same else None

        return rule

    return [
        not_told,
        weighed(
            equally,
            "the returned loss is the mean of the microbatches' losses, each weighing the same: a "
            "microbatch of more samples has to weigh more",
        ),
        weighed(
            summed,
            "the returned loss is the sum of the microbatches' mean losses: the mean over the "
            "whole batch is wanted",
        ),
        too_small,
        other_losses,
    ]


def too_small(seen: Observation, expected: Any) -> Diagnosis | None:
    """The loss was divided by the number of ranks, of which one alone has it."""
    size = len(seen)
    if expected is None or size == 1 or not close(list(seen), [one / size for one in expected]):
        return None
    text = (
        f"the returned loss is {size} times too small: the last rank alone has the batch's loss, "
        "and it is no mean over ranks"
    )
    return Diagnosis("divided-twice", tuple(range(size)), text, last_line(seen), GUIDE)


def other_losses(seen: Observation, expected: Any) -> Diagnosis | None:
    """Say that the losses differ and no more, where no known mistake makes such losses."""
    if expected is None:
        return None
    text = (
        f"pipeline_train_step returns {list(seen)} by rank: that is not the mean loss over all "
        "samples, as it was before the step"
    )
    ranks = tuple(range(len(seen)))
    return Diagnosis("differs-from-single-process", ranks, text, last_line(seen), GUIDE)


def diagnose_order(orders: Sequence[Sequence[str]], microbatches: int) -> Diagnosis | None:
    """Return what is wrong with when each rank's stage ran "forward" and "backward"."""
    early: Mapping[int, int] = {
        rank: [*order, "backward"].index("backward") for rank, order in enumerate(orders)
    }
    ranks = tuple(rank for rank, forwards in early.items() if forwards < microbatches)
    if not ranks:
        return None
    rank = ranks[0]
    what = "its first backward came" if "backward" in orders[rank] else "that was all"
    text = (
        f"rank {rank}'s stage had run forward {early[rank]} "
        f"time{'s' * (early[rank] != 1)} when {what}, with {microbatches} microbatches in the "
        "batch: first all of them go forward, one by one, and then all of them backward"
    )
    return Diagnosis("microbatch-order", ranks, text, guide=GUIDE)


def _is_empty(gradient: Any) -> bool:
    values = array(gradient)
    return values is None or not values.any()
