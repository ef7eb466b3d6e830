"""Mistakes in sending a bucket: before its gradients are final, or in the memory of `grad`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import listed
from support.rules.buckets import GUIDE, volume
from support.rules.gradients import Gradients, mean_of, wrong_names
from support.rules.reductions import last_reduce

FINAL = "The hook must see the final gradient"
TOO_EARLY = (
    "a hook of `register_hook` runs before the new gradient is in `grad`, and one of "
    "`register_post_accumulate_grad_hook` after it."
)
OVERWRITTEN = "Overwriting a bucket that is being sent"


def hooks_too_early(source: str) -> bool:
    """Return whether a file has hooks that run before `grad` is set, and none that run after."""
    return ".register_hook(" in source and "register_post_accumulate_grad_hook" not in source


def seen_too_early(local: Sequence[Gradients]) -> list[Rule]:
    """Return the rules for wrong gradients if the hooks run before `grad` is set.

    Args:
        local: by rank, the gradients of the last backward.
    """
    zero = [{name: value * 0 for name, value in own.items()} for own in local]

    def stale(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = wrong_names(seen, expected)
        states = (zero, local)
        if not wrong or not all(
            any(close(seen[rank].get(name), state[rank][name]) for state in states)
            for rank in range(len(local))
            for name in wrong
        ):
            return None
        return other(seen, expected)

    def other(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = wrong_names(seen, expected)
        if not wrong:
            return None
        text = (
            f"After finish(), the gradients of {listed(wrong)} are not the mean over the ranks. "
            f"Their buckets are sent too early: {TOO_EARLY}"
        )
        return _found("only-some-parameters", seen, text, FINAL)

    return [stale, other]


def empty_in_hook(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise an exception of a hook that found no gradient, if the hooks run too early."""
    failure = seen.failure
    if failure is None or "NoneType" not in (failure.detail or ""):
        return None
    text = f"{failure.diagnosis.explanation} {TOO_EARLY[0].upper()}{TOO_EARLY[1:]}"
    return replace(failure.diagnosis, explanation=text, guide=GUIDE)


def left_too_early(
    earlier: Sequence[Gradients],
    code: str,
    local: Sequence[Gradients] = (),
    elements: float = math.inf,
) -> Rule:
    """Return the rule for gradients that are as they were before the last backward.

    Args:
        earlier: by rank, the contents of `grad` before the last backward.
        code: the code of the mistake.
        local: by rank, the gradients of that backward, added to the earlier ones.
        elements: how many elements the run averages. If so many are sent, a gradient that is still
            a rank's own was in a bucket, but only later added to `grad`.
    """
    mean, size = mean_of(earlier), len(earlier)
    zero = {name: value * 0 for name, value in mean.items()}
    states: list[tuple[str, Sequence[Gradients]]] = [
        ("zero, as `grad` was before this backward", [zero] * size),
        ("the mean of `grad` as it was before the last backward", [mean] * size),
        ("still `grad` as it was before the last backward", list(earlier)),
    ]

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = wrong_names(seen, expected)
        if not wrong or len(wrong) == len(expected[0]):
            return None
        known = list(states)
        if local and _elements_sent(seen) >= elements:
            known.append(("still each rank's own", local))
        for what, state in known:
            if all(close(seen[r].get(n), own[n]) for r, own in enumerate(state) for n in wrong):
                text = (
                    f"The gradients of {listed(wrong)} are {what}, while all other gradients are "
                    "the mean over the ranks. Their bucket was sent before the new gradient was "
                    f"added to `grad`: {TOO_EARLY}"
                )
                return _found(code, seen, text, FINAL)
        return None

    return rule


def overwritten(local: Sequence[Gradients]) -> Rule:
    """Return the rule for gradients that a second backward changed while they were averaged.

    Args:
        local: by rank, the sum over both passes: its gradients if no bucket had the parameter.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = wrong_names(seen, expected)
        if not wrong or len(wrong) == len(expected[0]):
            return None
        if all(close(seen[r].get(n), own[n]) for r, own in enumerate(local) for n in wrong):
            return None
        text = (
            f"The gradients of {listed(wrong)} are not the sum of both passes, averaged over the "
            "ranks, but all other gradients are. These buckets may be views of `grad`, not copies: "
            "then a second backward changes a bucket while it is being averaged."
        )
        return _found("only-some-parameters", seen, text, OVERWRITTEN)

    return rule


def _elements_sent(seen: Observation) -> int:
    """Return how many floats rank 0 contributed, even to the smallest buckets."""
    calls = seen.collectives(0)
    return sum(volume(call) for call in calls if (call.dtype or "").startswith("float"))


def _found(code: str, seen: Observation, text: str, trap: str) -> Diagnosis:
    ranks = tuple(range(seen.world_size))
    text = f'{text} Read "{trap}" in the guide.'
    return Diagnosis(code, ranks, text, last_reduce(seen), GUIDE)
