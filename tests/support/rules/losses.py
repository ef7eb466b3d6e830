"""Mistakes in the loss that a training step returns, recognised by its value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from support.rules.wrong_results import ends_with


def loss_mistakes(
    own: Sequence[float], after: float, guide: str, line: str | None = None
) -> list[Rule]:
    """Return the rules that recognise a mistake by the losses that the ranks return.

    Args:
        own: by rank, the loss of its own batch before the step.
        after: the mean over all batches after the step.
        guide: the heading of GUIDELINES.md on the step.
        line: the line that returns the loss, if it is known.
    """
    count, total = len(own), sum(own)

    def rule(wrong: Sequence[float], code: str, text: str) -> Rule:
        return ends_with(wrong, code, text, guide)

    return [
        rule(
            [total] * count,
            "sum-not-mean",
            "The returned loss is the sum over the ranks. Return their mean.",
        ),
        rule(
            [total / count**2] * count,
            "divided-twice",
            f"The returned loss is {count} times too small: the sum over the ranks was divided by "
            "the number of ranks twice. Divide it once.",
        ),
        _only_rank_0_has_it(guide),
        *_local_losses(own, guide, line),
        rule(
            [after] * count,
            "differs-from-single-process",
            "The returned loss was computed after the step. Return the loss before the step.",
        ),
    ]


def _local_losses(own: Sequence[float], guide: str, line: str | None) -> list[Rule]:
    """Return the rules for losses of single ranks: each rank's own, or one rank's on all ranks."""
    count = len(own)
    known = [
        (own, "Every rank returns the loss of its own batch. Return the mean over the ranks."),
        (
            [loss / count for loss in own],
            "Every rank returns its own loss, divided by the number of ranks. Sum the losses over "
            "the ranks too.",
        ),
        *(
            (
                [loss] * count,
                f"Every rank returns the loss of rank {rank}'s batch. The ranks agree, but the "
                "losses of the other ranks are lost. Return the mean over the ranks.",
            )
            for rank, loss in enumerate(own)
        ),
    ]
    return [ends_with(losses, "loss-is-local", text, guide, line=line) for losses, text in known]


def _only_rank_0_has_it(guide: str) -> Rule:
    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if not close(seen[0], expected[0]):
            return None
        text = (
            f"Only rank 0 returns the mean loss: the ranks return {list(seen)}. Return the mean on "
            "every rank."
        )
        ranks = tuple(range(1, seen.world_size))
        return Diagnosis("only-one-rank-has-it", ranks, text, guide=guide)

    return rule
