"""Mistakes in how a training run ends if a rank is lost, and in what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import full_stop, ranks_text
from support.rules.resuming import resumed_wrongly

GUIDE = "When a rank dies"
TIME_TO_END = 60  # seconds
SHOWN = 200  # characters of an error
HAPPENED = {False: "was killed in the middle of training", True: "was later than the timeout"}


def hangs(lost: int, *, late: bool) -> Rule:
    """Return the rule for ranks that do not end after the rank `lost` was killed or late."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        failure = seen.failure
        if failure is None or failure.status != "timeout":
            return None
        text = (
            f"Rank {lost} {HAPPENED[late]}. The other ranks must end with an error within "
            f"{TIME_TO_END} s. {failure.diagnosis.explanation}"
        )
        ranks, where = failure.diagnosis.ranks, failure.diagnosis.where
        return Diagnosis("hangs-after-a-fault", ranks, text, where, GUIDE)

    return rule


def ended_wrongly(seen: Observation, lost: int, *, late: bool) -> Diagnosis | None:
    """Recognise ranks that are alive and ended without an error, or before the fault."""
    early = [rank for rank in seen.answered if not seen[rank]["reached"]]
    if lost in early:
        reason = next((t for rank in early for t in seen[rank]["messages"] or () if t), None)
        text = (
            f"Training ended on {ranks_text(early)} before rank {lost} was lost, in the second of "
            "2 epochs. "
        )
        text += full_stop(f"The error is: {reason[:SHOWN]}") if reason else "Steps are missing."
        code = "exception" if reason else "samples-missing"
        return Diagnosis(code, tuple(early), text, guide=GUIDE)
    calm = [rank for rank in seen.answered if seen[rank]["messages"] is None]
    if not calm:
        return None
    text = (
        f"Rank {lost} {HAPPENED[late]}, but train ended without an error on {ranks_text(calm)}, so "
        "the launcher regards the job as finished. Do not continue without a rank: end with an "
        "error."
    )
    return Diagnosis("error-swallowed", tuple(calm), text, guide=GUIDE)


def resumed_after_loss_wrongly(
    again: Observation, interrupted: int, steps: int, epochs: int
) -> Diagnosis | None:
    """Recognise a new run that does not end like one without a fault.

    Args:
        again: by rank, the `whole` run, and the `second` one, which resumed from the file.
        interrupted: the step of the fault.
        steps: the number of steps in an epoch, each with one sample of a rank.
        epochs: the number of epochs.
    """
    whole = [value["whole"] for value in again]
    second = [value["second"] for value in again]
    if not all(close(one["params"], whole[0]["params"]) for one in second):
        return resumed_wrongly(whole, second, interrupted)
    start = len(whole[0]["trained"]) - len(second[0]["trained"])
    taken = [w["trained"][:start] + s["trained"] for w, s in zip(whole, second, strict=True)]
    for epoch in range(epochs):
        if _used(taken, epoch, steps) != list(range(steps * len(again))):
            text = (
                f"The steps of epoch {epoch} before and after the interruption do not use each "
                "sample exactly once. Resume at the position in the file."
            )
            ranks = tuple(range(len(again)))
            return Diagnosis("samples-repeated", ranks, text, guide=GUIDE)
    return None


def _used(taken: Sequence[Sequence[int]], epoch: int, steps: int) -> list[int]:
    """Return the samples that the ranks used in an epoch, sorted."""
    return sorted(s for own in taken for s in own[epoch * steps : (epoch + 1) * steps])
