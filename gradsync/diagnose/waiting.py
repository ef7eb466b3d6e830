"""Mistakes in waiting for what was started, and for ranks that had better come all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.ranks.wording import line_text
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.text import ranks_text

Call = tuple[int, int]  # the rank, and which of its calls
UNAWAITED = ("send", "barrier")  # who starts one of these may have no use for its end


def nobody_waited(
    seen: Observation, guide: str, chosen: Callable[[Collective], bool] | None = None
) -> Diagnosis | None:
    """A rank entered a collective that leaves a result, and went on without knowing it complete.

    Whether the result was there all the same is luck, so what came of it is no evidence.
    """
    chosen = chosen or leaves_a_result
    calls = {
        (event.rank, event.call): event.collective
        for event in seen.events
        if event.collective is not None and chosen(event.collective)
    }
    exits = {(event.rank, event.call): event for event in seen.events if event.kind == "exit"}
    if kept := [call for call in calls if call not in exits]:
        open_still = (
            "what it is to bring may not be there yet"
            if calls[kept[0]].op == "recv"
            else "what it leaves is not what the ranks' meeting gives"
        )
        text = f"is never waited for: until it is complete, {open_still}"
        return _unwaited(calls, kept, text, guide)
    if touched := [call for call in calls if exits[call].touched]:
        text = (
            "was not known to be complete when the rank changed the tensor that it had put in: "
            "which of the two comes last is luck. Wait first, then go on with what came"
        )
        return _unwaited(calls, touched, text, guide)
    return None


def _unwaited(
    calls: Mapping[Call, Collective], which: Sequence[Call], text: str, guide: str
) -> Diagnosis:
    first = calls[which[0]]
    what = f" ({first.label})" if first.label else ""
    told = f"the {first.op} that starts at {line_text(first)}{what} {text}"
    ranks = tuple(sorted({rank for rank, _ in which}))
    return Diagnosis("no-rank-waits", ranks, told, first.where, guide)


def raised_before_it_waited(rank: int, what: str, guide: str) -> Rule:
    """Return the rule for a rank that raised while what it had started was under way.

    Only a rank that has nothing of its own to go on with: any other may have raised for a reason
    that has to do with no collective.
    """

    def rule(seen: Observation, _expected: object) -> Diagnosis | None:
        failure = seen.failure
        told = failure.diagnosis if failure and failure.status == "error" else None
        if told is None or told.ranks != (rank,):
            return None
        began = {(event.rank, event.call) for event in seen.events if event.kind != "enter"}
        where = [
            event.collective.where
            for event in seen.events
            if event.collective is not None
            and leaves_a_result(event.collective)
            and event.rank == rank
            and (rank, event.call) not in began
        ]
        if not where:
            return None
        text = (
            f"{told.explanation} That rank has {what}, and had yet to wait for what it started at "
            f"{where[0]}: until that is complete, it has nothing from the other ranks"
        )
        return Diagnosis("no-rank-waits", told.ranks, text, where[0], guide)

    return rule


def leaves_a_result(collective: Collective) -> bool:
    return collective.op not in UNAWAITED


def stepped_too_early(calls: Sequence[Sequence[Sequence[str]]], guide: str) -> Rule:
    """Return the rule for wrong weights after an optimizer's step that nobody had waited before.

    Args:
        calls: by rank and step of the training, what was called in order: "finish" or "step".
        guide: the heading of GUIDELINES.md to read.
    """
    taken = [(rank, order) for rank, steps in enumerate(calls) for order in steps]
    early = [(rank, order) for rank, order in taken if order[:1] == ["step"]]

    def rule(_seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not early:
            return None
        late = any("finish" in order for _, order in early)
        when = "before finish() of the averager" if late else "and finish() of the averager never"
        text = (
            f"optimizer.step() is called {when}: until finish() has waited for the buckets, they "
            "may still be on their way, and what is in `grad` is not the mean over the ranks. "
            "finish() comes after the last microbatch, and optimizer.step() after finish()"
        )
        ranks = tuple(sorted({rank for rank, _ in early}))
        return Diagnosis("no-rank-waits", ranks, text, guide=guide)

    return rule


def stepped_too_often(calls: Sequence[Sequence[Sequence[str]]], guide: str) -> Rule:
    """Return the rule for a wrong result of a batch for which the optimizer stepped repeatedly.

    Args:
        calls: as for `stepped_too_early`.
        guide: the heading of GUIDELINES.md to read.
    """
    counts = [max((order.count("step") for order in steps), default=0) for steps in calls]

    def rule(_seen: Observation, expected: Any) -> Diagnosis | None:
        ranks = tuple(rank for rank, count in enumerate(counts) if count > 1)
        if expected is None or not ranks:
            return None
        text = (
            f"optimizer.step() is called {counts[ranks[0]]} times for one batch: the gradients of "
            "all microbatches add up first, and then comes one step"
        )
        return Diagnosis("accumulation-ignored", ranks, text, guide=guide)

    return rule


def stayed_away_with_nan(rank: int, what: str, guide: str) -> Rule:
    """Return the rule for a rank that came until it alone had something that is no number."""

    def rule(seen: Observation, _expected: object) -> Diagnosis | None:
        failure = seen.failure
        told = failure.diagnosis if failure and failure.status == "deadlock" else None
        if told is None or told.ranks != (rank,) or not seen.collectives(rank):
            return None
        text = (
            f"{told.explanation} {ranks_text([rank]).capitalize()} alone had {what} that is no "
            "number. Whether to skip it is for all ranks to decide alike: who skips alone leaves "
            "the others waiting"
        )
        return Diagnosis(told.code, told.ranks, text, told.where, guide)

    return rule
