"""Run a function several times, with other ranks late, until a schedule shows a mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gradsync.ranks.protocol import values
from gradsync.records import Diagnosis, Failure, Observation
from gradsync.text import ranks_text


def explore(run: Callable[[int], Observation], schedules: int) -> Observation:
    """Run the schedules 0, 1, ... until one fails, or returns other values than the first.

    Returns:
        The observation of that schedule, with its number in the explanation; or else of the last.
    """
    first = run(0)
    seen = first
    for number in range(schedules):
        seen = first if number == 0 else run(number)
        failure = seen.failure or _difference(first, seen)
        if failure is not None:
            text = (
                f"{failure.diagnosis.explanation} Schedule {number} of {schedules} showed this: to "
                f"repeat it, pass schedule={number}."
            )
            found = replace(failure, diagnosis=replace(failure.diagnosis, explanation=text))
            return replace(seen, failure=found)
    return seen


def _difference(first: Observation, seen: Observation) -> Failure | None:
    """Return the failure of ranks that return other values than in the first schedule."""
    ranks = tuple(
        rank
        for rank, (one, other) in enumerate(zip(first, seen, strict=True))
        if _plain(one) != _plain(other)
    )
    if not ranks:
        return None
    text = (
        f"The result depends on the schedule: {ranks_text(ranks)} returned another value than in "
        "schedule 0."
    )
    hint = next((warning for warning in (*seen.warnings, *first.warnings)), None)
    if hint is not None:
        text = f"{text} {hint.explanation}"
    where = hint.where if hint else None
    return Failure("failed", Diagnosis("result-depends-on-schedule", ranks, text, where))


def _plain(value: Any) -> tuple[str, list[bytes]]:
    """Return a value as plain data; NaNs and tensors of the same bytes are equal."""
    tree, pieces = values.encode(value)
    return repr(tree), [bytes(piece) for piece in pieces]
