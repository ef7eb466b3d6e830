"""Mistakes in the loss that a training step returns, known by the numbers that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import would_be
from gradsync.diagnose.values import close
from gradsync.records import Diagnosis, Observation


def loss_mistakes(own: Sequence[float], after: float, guide: str) -> list[Rule]:
    """Return the rules that know a mistake by the losses that the ranks return.

    Args:
        own: by rank, the loss of its own batch before the step.
        after: the mean over all batches after the step.
        guide: the heading of GUIDELINES.md on the step.
    """
    count, total = len(own), sum(own)

    def rule(wrong: Sequence[float], code: str, text: str) -> Rule:
        return would_be(wrong, code, text, guide)

    return [
        rule(
            [total] * count,
            "sum-not-mean",
            "the returned loss is the sum over the ranks, not their mean",
        ),
        rule(
            [total / count**2] * count,
            "divided-twice",
            f"the returned loss is {count} times too small: the sum over the ranks was divided by "
            "their number twice",
        ),
        _only_rank_0_has_it(guide),
        *_local_losses(own, guide),
        rule(
            [after] * count,
            "differs-from-single-process",
            "the returned loss is that after the step: it belongs to the weights before it",
        ),
    ]


def _local_losses(own: Sequence[float], guide: str) -> list[Rule]:
    """Return the rules that know losses of single ranks, each its own or all one rank's."""
    count = len(own)
    known = [
        (own, "every rank returns the loss of its own batch: the mean over the ranks is wanted"),
        (
            [loss / count for loss in own],
            "every rank returns its own loss, divided by the number of ranks: what is missing is "
            "the sum over them",
        ),
        *(
            (
                [loss] * count,
                f"every rank returns the loss of rank {rank}'s batch: they agree, but what the "
                "others had is lost. The mean over the ranks is wanted",
            )
            for rank, loss in enumerate(own)
        ),
    ]
    return [would_be(losses, "loss-is-local", text, guide) for losses, text in known]


def _only_rank_0_has_it(guide: str) -> Rule:
    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if not close(seen[0], expected[0]):
            return None
        text = (
            f"rank 0 alone returns the mean loss, the ranks return {list(seen)}: all of them are "
            "to have it"
        )
        ranks = tuple(range(1, seen.world_size))
        return Diagnosis("only-one-rank-has-it", ranks, text, guide=guide)

    return rule
