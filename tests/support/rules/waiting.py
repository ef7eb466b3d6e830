"""Mistakes in waiting for a collective, or for ranks that skip one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradsync.ranks.deadlocks.explanations import line_text, without_advice
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.text import full_stop, ranks_text

Call = tuple[int, int]  # the rank, and which of its calls
UNAWAITED = ("send", "barrier")  # they leave no result that a rank must wait for


def nobody_waited(
    seen: Observation, guide: str, chosen: Callable[[Collective], bool] | None = None
) -> Diagnosis | None:
    """Recognise a collective with a result that a rank uses without waiting for it.

    Right values are not evidence that a rank waited: the outcome is a race.
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
            "its tensor does not reliably contain the received data"
            if calls[kept[0]].op == "recv"
            else "its tensor does not reliably contain the result"
        )
        text = (
            f"is never waited for. Until it is complete, {open_still}. Call `wait()` on its handle "
            "before you use the tensor."
        )
        return _unwaited(calls, kept, text, guide)
    if touched := [call for call in calls if exits[call].touched]:
        text = (
            "may not have been complete when the rank changed its tensor, so the outcome is a "
            "race. Wait for it before you change the tensor."
        )
        return _unwaited(calls, touched, text, guide)
    return None


def _unwaited(
    calls: Mapping[Call, Collective], which: Sequence[Call], text: str, guide: str
) -> Diagnosis:
    first = calls[which[0]]
    what = f" ({first.label})" if first.label else ""
    message = f"The {first.op} that starts at {line_text(first)}{what} {text}"
    ranks = tuple(sorted({rank for rank, _ in which}))
    return Diagnosis("no-rank-waits", ranks, message, first.where, guide)


def raised_before_waiting(rank: int, what: str, guide: str) -> Rule:
    """Return the rule for a rank that raised before it waited for a collective that it started.

    Use it only for a rank without data: any other rank may raise for an unrelated reason.

    Args:
        rank: the rank.
        what: the data that it has, such as "no sample".
        guide: the heading of GUIDELINES.md to read.
    """

    def rule(seen: Observation, _expected: object) -> Diagnosis | None:
        failure = seen.failure
        cause = failure.diagnosis if failure and failure.status == "error" else None
        if cause is None or cause.ranks != (rank,):
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
            f"{full_stop(cause.explanation)} This rank has {what}, and did not wait for the "
            f"collective that it started at {where[0]}. Until it is complete, this rank "
            "has no data of the other ranks. Wait for it before you use the result."
        )
        return Diagnosis("no-rank-waits", cause.ranks, text, where[0], guide)

    return rule


def everyone_sends(guide: str) -> Rule:
    """Return the rule for a deadlock in which every rank waits in a send, so no rank receives."""

    def rule(seen: Observation, _expected: object) -> Diagnosis | None:
        failure = seen.failure
        last = [calls[-1].op for r in range(seen.world_size) if (calls := seen.collectives(r))]
        if failure is None or failure.status != "deadlock" or set(last) != {"send"}:
            return None
        found = failure.diagnosis
        text = (
            f"{found.explanation} Every rank waits in a send, so no rank receives. A send may "
            "block until its receiver arrives: start the receive first, or send asynchronously."
        )
        return Diagnosis(found.code, found.ranks, text, found.where, guide)

    return rule


def leaves_a_result(collective: Collective) -> bool:
    return collective.op not in UNAWAITED


def stepped_too_early(calls: Sequence[Sequence[Sequence[str]]], guide: str) -> Rule:
    """Return the rule for wrong weights after an optimizer step that did not wait for `finish()`.

    Args:
        calls: by rank and step of the training, the calls in order: "finish" or "step".
        guide: the heading of GUIDELINES.md to read.
    """
    taken = [(rank, order) for rank, steps in enumerate(calls) for order in steps]
    early = [(rank, order) for rank, order in taken if order[:1] == ["step"]]

    def rule(_seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not early:
            return None
        late = any("finish" in order for _, order in early)
        when = "before finish() of the averager" if late else "without finish() of the averager"
        text = (
            f"optimizer.step() is called {when}. Until finish() has waited for the buckets, their "
            "collectives may still be running, and `grad` is not the mean over the ranks. Call "
            "finish() after the last microbatch, and optimizer.step() after finish()."
        )
        ranks = tuple(sorted({rank for rank, _ in early}))
        return Diagnosis("no-rank-waits", ranks, text, guide=guide)

    return rule


def stepped_too_often(calls: Sequence[Sequence[Sequence[str]]], guide: str) -> Rule:
    """Return the rule for a wrong result if the optimizer stepped more than once for a batch.

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
            f"optimizer.step() is called {counts[ranks[0]]} times for one batch. Add up the "
            "gradients of all microbatches first, and then take one step."
        )
        return Diagnosis("accumulation-ignored", ranks, text, guide=guide)

    return rule


def skipped_because_of_nan(rank: int, what: str, guide: str) -> Rule:
    """Return the rule for a rank that skipped a collective because only it had a NaN.

    Args:
        rank: the rank.
        what: the value that is NaN, such as "a loss".
        guide: the heading of GUIDELINES.md to read.
    """

    def rule(seen: Observation, _expected: object) -> Diagnosis | None:
        failure = seen.failure
        cause = failure.diagnosis if failure and failure.status == "deadlock" else None
        if cause is None or cause.ranks != (rank,) or not seen.collectives(rank):
            return None
        text = (
            f"{full_stop(without_advice(cause.explanation))} Only {ranks_text([rank])} "
            f"had {what} that is NaN. All ranks must decide together whether to skip the step: if "
            "one rank skips it alone, the others wait in the collective."
        )
        return Diagnosis(cause.code, cause.ranks, text, cause.where, guide)

    return rule
