"""Mistakes in a pipeline's step, recognised by its gradients, its losses and its order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from gradsync.ranks.deadlocks.explanations import without_advice
from gradsync.records import Diagnosis, Observation
from gradsync.testing.differences import describe_difference
from gradsync.testing.rules import Rule
from gradsync.testing.values import array, close
from gradsync.text import counted, listed, ranks_text
from support.rules.vectors import common_factor
from support.rules.wrong_results import ends_with, last_line

GUIDE = "Pipelines"
# How the microbatches were treated -> the code and the message.
GRADIENTS = {
    "equally": (
        "microbatch-mean-unweighted",
        "The gradients were computed from the mean of the microbatches' losses, with equal "
        "weights. A microbatch with more samples must have more weight. Weight each loss by the "
        "microbatch's share of the samples.",
    ),
    "summed": (
        "microbatch-mean-unweighted",
        "The gradients were computed from the sum of the microbatches' mean losses. The loss of "
        "the batch is the mean over all its samples, which is smaller. Weight each loss by the "
        "microbatch's share of the samples.",
    ),
    "last": (
        "differs-from-single-process",
        "The gradients were computed from only one microbatch. The gradients of the other "
        "microbatches are lost. The gradients of all microbatches must add up in `grad`.",
    ),
    "kept": (
        "gradients-not-zeroed",
        "The gradients include the values of `grad` before the step. Clear the gradients in each "
        "step, before its first backward.",
    ),
}


def pipeline_gradient_mistakes(
    ended: Sequence[tuple[str, Sequence[Any]]], backwards: Sequence[Sequence[int]] = ()
) -> list[Rule]:
    """Return the rules for the stages' gradients after a step.

    Args:
        ended: pairs of a mistake, a key of GRADIENTS, and each rank's gradients with it.
        backwards: by rank, the microbatches in the order of their backward passes.
    """
    known = [ends_with(by_rank, *GRADIENTS[what], GUIDE) for what, by_rank in ended]
    return [crossed(backwards), empty_gradients, *known, scaled_by_ranks, other_gradients]


def crossed(backwards: Sequence[Sequence[int]]) -> Rule:
    """Return the rule for ranks that go back through the microbatches in different orders.

    Args:
        backwards: by rank, the microbatches in the order of their backward passes; empty if the
            stage has none, because it is frozen.
    """

    def rule(_seen: Observation, expected: Any) -> Diagnosis | None:
        ran = [(rank, list(order)) for rank, order in enumerate(backwards) if order]
        for (rank, order), (after, other) in pairwise(ran):
            if expected is not None and order != other:
                text = (
                    f"Rank {rank} goes back through the microbatches in the order {order}, and "
                    f"rank {after}, which sends it their gradients, in the order {other}. So "
                    "gradients are used with the activations of a different microbatch. Both "
                    "ranks must go through the microbatches in the same order."
                )
                return Diagnosis("microbatch-order", (rank, after), text, guide=GUIDE)
        return None

    return rule


def scaled_by_ranks(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise gradients that were divided by the number of ranks, or multiplied by it."""
    size = len(seen)
    factor = common_factor(list(seen), list(expected or ())) if size > 1 else None
    for code, wrong, cause in (
        ("divided-twice", 1 / size, f"{size} times too small: something is divided"),
        ("sum-not-mean", float(size), f"{size} times too large: something is multiplied"),
    ):
        if factor is not None and close(factor, wrong):
            text = (
                f"The gradients of every stage are exactly {cause} by the number of ranks. Do not "
                "average or sum them over the ranks: the stages have different parameters. Only "
                "the last rank has the loss, which is already the loss of the complete batch."
            )
            return Diagnosis(code, tuple(range(size)), text, last_line(seen), GUIDE)
    return None


def stepped_too_often(counts: Sequence[int], batches: int) -> Rule:
    """Return the rule for wrong results of a rank whose optimizer stepped too often.

    Args:
        counts: by rank, the number of steps of its optimizer.
        batches: the number of batches, each of which is one step.
    """
    ranks = tuple(rank for rank, count in enumerate(counts) if count > batches)

    def rule(_seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not ranks:
            return None
        text = (
            f"optimizer.step() is called {counted(counts[ranks[0]], 'time')} for "
            f"{counted(batches, 'batch', 'batches')} on {ranks_text(ranks)}, so a parameter is "
            "changed between the forward and the backward pass of a microbatch. Call it once, "
            "after the backward passes of all microbatches."
        )
        return Diagnosis("accumulation-ignored", ranks, text, guide=GUIDE)

    return rule


def stages_summed(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a deadlock in a sum of the gradients of different stages."""
    failure = seen.failure
    call = failure.collective if failure is not None else None
    if failure is None or call is None or call.op != "all_reduce":
        return None
    if not (call.label or "").endswith(".grad"):
        return None
    together = all(c and c[-1].op == call.op for c in map(seen.collectives, range(seen.world_size)))
    text = (
        f"{without_advice(failure.diagnosis.explanation)} Each stage has its own "
        "parameters, which no other rank has. Their gradients are complete after the backward "
        "passes of all microbatches: do not add them up over the ranks."
    )
    code = "shape-mismatch" if together else failure.diagnosis.code
    return replace(failure.diagnosis, code=code, explanation=text, guide=GUIDE)


def empty_gradients(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise gradients that are None or zero although they should not be."""
    if expected is None:
        return None
    empty = tuple(
        rank
        for rank, wanted in enumerate(expected)
        if any(_is_empty(seen[rank].get(n)) and not _is_empty(wanted[n]) for n in wanted)
    )
    if not empty:
        return None
    text = f"After the step, the gradient of a parameter is None or zero on {ranks_text(empty)}. "
    if len(seen) - 1 in empty:
        text += "Either backward does not reach these stages, or the gradients are cleared after "
        text += "the step. Clear them at the beginning of the step."
    else:
        text += "Only later stages have gradients, so the gradient of the loss is not sent back to "
        text += "these. Autograd computes it for a received activation only if `requires_grad_()` "
        text += "is called on it before the stage's forward: then send its `grad` to the rank "
        text += "before."
    return Diagnosis("differs-from-single-process", empty, text, guide=GUIDE)


def other_gradients(seen: Observation, expected: Any) -> Diagnosis | None:
    """Report gradients that differ for an unknown reason."""
    if expected is None:
        return None
    wrong = tuple(rank for rank, wanted in enumerate(expected) if not close(seen[rank], wanted))
    last = len(seen) - 1
    text = (
        f"On {ranks_text(wrong)}, the gradients after the step differ from the gradients of the "
        f"unsplit model on the complete batch{describe_difference(list(seen), expected)}. "
    )
    if last in wrong:
        text += "The last stage's are wrong too, so first look at the forward passes and the loss: "
        text += "do a microbatch's outputs meet the targets of the same microbatch?"
    else:
        text += f"The gradients of rank {max(wrong) + 1} are right. It must send back the `grad` "
        text += f"of the activations that it received, and rank {max(wrong)} must pass exactly "
        text += "this to `backward` of its outputs of the same microbatch."
    return Diagnosis("differs-from-single-process", wrong, text, guide=GUIDE, vague=True)


def idle_stages(before: Sequence[Any]) -> Rule:
    """Return the rule for stages whose weights a step does not change.

    Args:
        before: by rank, the weights before the step.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        idle = tuple(
            rank
            for rank, own in enumerate(before)
            if close(seen[rank], own) and not close(expected[rank], own)
        )
        if not idle:
            return None
        text = (
            f"The weights of {ranks_text(idle)} did not change. After the backward passes, every "
            "rank must call optimizer.step() for its own stage."
        )
        return Diagnosis("does-not-learn", idle, text, guide=GUIDE)

    return rule


def kept_on_some_ranks(kept: Sequence[Any]) -> Rule:
    """Return the rule for weights of stages that do not clear their gradients.

    Args:
        kept: by rank, the weights after steps that also use the gradients of all earlier steps.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = [rank for rank, wanted in enumerate(expected) if not close(seen[rank], wanted)]
        if not all(close(seen[rank], kept[rank]) for rank in wrong):
            return None
        text = (
            f"On {ranks_text(wrong)}, the weights show that each step added the gradients of all "
            "earlier steps. Every stage must clear its gradients in each step."
        )
        return Diagnosis("gradients-not-zeroed", tuple(wrong), text, guide=GUIDE)

    return rule


def pipeline_loss_mistakes(equally: float, summed: float) -> list[Rule]:
    """Return the rules for the returned losses.

    Args:
        equally: the mean of the microbatches' losses, with equal weights.
        summed: the sum of the microbatches' losses.
    """

    def only_last_rank(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or len(seen) == 1 or not close(seen[-1], expected[-1]):
            return None
        wrong = tuple(rank for rank, wanted in enumerate(expected) if not close(seen[rank], wanted))
        text = (
            "Only the last rank returns the loss of the batch, because only it has the targets. "
            "All ranks must return it. Send it from the last rank to the others."
        )
        return Diagnosis("loss-is-local", wrong, text, last_line(seen), GUIDE)

    def unweighted(wrong: float, text: str) -> Rule:
        def rule(seen: Observation, expected: Any) -> Diagnosis | None:
            same = expected is not None and close(seen[-1], wrong)
            ranks = tuple(range(len(seen)))
            code = "microbatch-mean-unweighted"
            return Diagnosis(code, ranks, text, last_line(seen), GUIDE) if same else None

        return rule

    return [
        only_last_rank,
        nobody_has_it,
        unweighted(
            equally,
            "The returned loss is the mean of the microbatches' losses, with equal weights. A "
            "microbatch with more samples must have more weight.",
        ),
        unweighted(
            summed,
            "The returned loss is the sum of the microbatches' mean losses. It must be the mean "
            "over the complete batch.",
        ),
        too_small,
        other_losses,
    ]


def nobody_has_it(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a loss of zero on every rank, such as that of a rank without targets."""
    if any(loss != 0 for loss in seen):
        return None
    ranks = tuple(range(len(seen)))
    text = (
        f"The step returns 0 on {ranks_text(ranks)}. Only the last rank computes the loss: send it "
        "from there to all other ranks."
    )
    return Diagnosis("loss-is-local", ranks, text, last_line(seen), GUIDE)


def too_small(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise a loss that was divided by the number of ranks, although only one rank has it."""
    size = len(seen)
    if expected is None or size == 1 or not close(list(seen), [one / size for one in expected]):
        return None
    text = (
        f"The returned loss is {size} times too small. Only the last rank has a loss, which is "
        "already the loss of the complete batch: do not divide it by the number of ranks."
    )
    return Diagnosis("divided-twice", tuple(range(size)), text, last_line(seen), GUIDE)


def other_losses(seen: Observation, expected: Any) -> Diagnosis | None:
    """Report losses that differ for an unknown reason."""
    if expected is None:
        return None
    text = (
        f"The step returns {listed(seen)} on {ranks_text(range(len(seen)))}. It must "
        "return the mean loss over all samples, computed with the weights before the step."
    )
    ranks = tuple(range(len(seen)))
    return Diagnosis("differs-from-single-process", ranks, text, last_line(seen), GUIDE)


def diagnose_order(orders: Sequence[Sequence[str]], microbatches: int) -> Diagnosis | None:
    """Return the diagnosis if a stage ran "backward" before all microbatches went "forward"."""
    early: Mapping[int, int] = {
        rank: [*order, "backward"].index("backward") for rank, order in enumerate(orders)
    }
    ranks = tuple(rank for rank, forwards in early.items() if forwards < microbatches)
    if not ranks:
        return None
    rank = ranks[0]
    when = " before its first backward" if "backward" in orders[rank] else ""
    text = (
        f"The stage of rank {rank} ran forward {counted(early[rank], 'time')}{when}, but "
        f"the batch has {counted(microbatches, 'microbatch', 'microbatches')}. First run all "
        "microbatches forward, one by one, and then all of them backward."
    )
    return Diagnosis("microbatch-order", ranks, text, guide=GUIDE)


def order_of_1f1b(rank: int, world_size: int, microbatches: int) -> list[str]:
    """Return the passes of a rank's stage: first forwards, then both in turn, then backwards."""
    ahead = min(world_size - 1 - rank, microbatches)
    return [
        *["forward"] * ahead,
        *["forward", "backward"] * (microbatches - ahead),
        *["backward"] * ahead,
    ]


def diagnose_1f1b(orders: Sequence[Sequence[str]], microbatches: int) -> Diagnosis | None:
    """Return the diagnosis of stages that do not run in 1F1B order."""
    size = len(orders)
    wanted = [order_of_1f1b(rank, size, microbatches) for rank in range(size)]
    ranks = tuple(rank for rank in range(size) if list(orders[rank]) != wanted[rank])
    if not ranks:
        return None
    rank = ranks[0]
    shown, right = (_letters(order) for order in (orders[rank], wanted[rank]))
    cause = "Run forward for N - 1 - r microbatches, then one forward and one backward in turn."
    if all("backward" not in orders[r][:microbatches] for r in ranks) and microbatches > 1:
        cause = (
            "All forwards come before the first backward: this is GPipe, which keeps the "
            f"activations of all microbatches. {cause}"
        )
    elif shown.startswith("FBFB"):
        cause = f"Each forward waits for its own backward, so the other stages wait, too. {cause}"
    text = (
        f"Of {counted(microbatches, 'microbatch', 'microbatches')}, rank {rank} of {size} runs the "
        f"passes {shown} (F is a forward, B a backward). In 1F1B order they are {right}. {cause}"
    )
    return Diagnosis("not-1f1b", ranks, text, guide=GUIDE)


def _letters(order: Sequence[str]) -> str:
    return "".join(name[0].upper() for name in order) or "none"


def too_many_alive(seen: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    """Return the diagnosis of stages that keep more microbatches than N - r.

    Args:
        seen: by rank, at each forward the number of microbatches with tensors "alive" for
            backward, and with "graphs". A local variable may refer to the last one's graph.
    """
    size = len(seen)
    for name, allowed in (("alive", 0), ("graphs", 1)):
        most = [max(value[name], default=0) for value in seen]
        ranks = tuple(rank for rank in range(size) if most[rank] > size - rank + allowed)
        if ranks:
            rank = ranks[0]
            what = "activations" if name == "alive" else "outputs, with their graph,"
            text = (
                f"Rank {rank} of {size} keeps the {what} of {most[rank]} microbatches at one time. "
                f"In 1F1B it keeps at most N - r, which is {size - rank}. Let go of everything of "
                "a microbatch after its backward."
            )
            return Diagnosis("too-many-activations", ranks, text, guide=GUIDE)
    return None


def _is_empty(gradient: Any) -> bool:
    values = array(gradient)
    return values is None or not values.any()
