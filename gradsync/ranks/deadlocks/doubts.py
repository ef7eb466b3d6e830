"""Trusted, pure: find the calls of a successful run whose outcome is uncertain or wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from gradsync.ranks.deadlocks.explanations import line_text
from gradsync.records import Collective, Diagnosis, Event
from gradsync.text import ranks_text

# They leave no result that a rank must wait for.
NO_RESULT = ("send", "barrier", "monitored_barrier")
SAME_SHAPES = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "reduce_scatter")
# gloo takes the memory of these tensors as it is; it copies or refuses the tensors of other calls.
MEMORY_AS_IT_IS = ("all_reduce", "broadcast", "reduce", "scatter")
STARTERS = (None, "batch_isend_irecv")  # the user's code starts such a call, and not torch's

Calls = Mapping[int, Collective]  # by rank


def doubts(events: Iterable[Event]) -> tuple[Diagnosis, ...]:
    """Return a diagnosis for each line with such a call: the events are those of all ranks."""
    events = list(events)
    found: dict[tuple[str, Collective], set[int]] = defaultdict(set)
    for text, call, ranks in (*_races(events), *_mismatches(events)):
        same_line = next((c for t, c in found if (t, c.where) == (text, call.where)), call)
        found[text, same_line].update(ranks)
    return tuple(
        Diagnosis(
            code,
            tuple(sorted(ranks)),
            f"On {ranks_text(ranks)}, the {call.op} at {line_text(call)} {text}",
            call.where,
        )
        for (text, call), ranks in found.items()
        for code in [CODES[text]]
    )


UNAWAITED = (
    "is never waited for. Until it is complete, its tensor does not reliably contain the "
    "result. Call `wait()` on its handle."
)
TOUCHED = (
    "may not have been complete when the rank changed its tensor, so the outcome is a race. "
    "Wait for it before you change the tensor."
)
SHAPES = (
    "gets tensors of different shapes, which happen to have the same number of elements. Each "
    "rank must pass the same shape."
)
LAYOUT = (
    "gets a tensor that is not contiguous, or not in the same layout on all ranks. gloo uses "
    "its memory as it is, so the result is wrong. Pass a contiguous tensor."
)
CODES = {
    UNAWAITED: "never-awaited",
    TOUCHED: "changed-in-flight",
    SHAPES: "shape-mismatch",
    LAYOUT: "not-contiguous",
}
Found = Iterator[tuple[str, Collective, Iterable[int]]]


def _races(events: Iterable[Event]) -> Found:
    """Yield the calls that a rank does not wait for, or whose tensor it changes meanwhile."""
    started: dict[tuple[int, int], Collective] = {}
    for event in events:
        key = event.rank, event.call
        if event.collective is not None and _is_users(event.collective):
            started[key] = event.collective
        elif event.kind == "exit" and (call := started.pop(key, None)) and event.touched:
            yield TOUCHED, call, [event.rank]
    for (rank, _), call in started.items():
        if call.op not in NO_RESULT:
            yield UNAWAITED, call, [rank]


def _mismatches(events: Iterable[Event]) -> Found:
    """Yield the collectives that work on the same memory in different ways."""
    operations: dict[tuple[str, int], dict[int, Collective]] = defaultdict(dict)
    positions: Counter[tuple[str, int]] = Counter()
    for event in events:
        call = event.collective
        if call is not None and call.op not in ("send", "recv"):
            operations[call.group, positions[call.group, event.rank]][event.rank] = call
            positions[call.group, event.rank] += 1
    for calls in operations.values():
        first = next(iter(calls.values()))
        if _is_users(first) and first.op in SAME_SHAPES and _differ_in_shape(calls):
            yield SHAPES, first, calls
        if _is_users(first) and first.op in MEMORY_AS_IT_IS and _differ_in_layout(calls):
            yield LAYOUT, first, calls


def _differ_in_shape(calls: Calls) -> bool:
    shapes = {
        tuple(tuple(side for side in shape if side != 1) for shape in call.shapes)
        for call in calls.values()
    }
    return len(shapes) > 1


def _differ_in_layout(calls: Calls) -> bool:
    if len({call.strides for call in calls.values()}) > 1:
        return True
    return any(
        not _is_dense(shape, strides)
        for call in calls.values()
        for shape, strides in zip(call.shapes, call.strides, strict=False)
    )


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether a tensor's elements fill its memory without gaps, in whatever order."""
    expected = 1
    for stride, side in sorted(zip(strides, shape, strict=True)):
        if side != 1:
            if stride != expected:
                return False
            expected *= side
    return True


def _is_users(call: Collective) -> bool:
    return call.where is not None and call.via in STARTERS
