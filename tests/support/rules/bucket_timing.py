"""Mistakes in sending a bucket: before its gradients are final, or in the memory of `grad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import listed
from support.rules.buckets import GUIDE
from support.rules.gradients import Gradients, mean_of, wrong_names
from support.rules.reductions import last_reduce

FINAL = "The hook must see the final gradient"
OVERWRITTEN = "Overwriting a bucket that is being sent"


def left_too_early(earlier: Sequence[Gradients], code: str) -> Rule:
    """Return the rule for gradients that are as they were before the last backward.

    Args:
        earlier: by rank, the contents of `grad` before the last backward.
        code: the code of the mistake.
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
        for what, state in states:
            if all(close(seen[r].get(n), own[n]) for r, own in enumerate(state) for n in wrong):
                text = (
                    f"The gradients of {listed(wrong)} are {what}, while all other gradients are "
                    "the mean over the ranks. The bucket was sent before the new gradient was "
                    "added to `grad`."
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


def _found(code: str, seen: Observation, text: str, trap: str) -> Diagnosis:
    ranks = tuple(range(seen.world_size))
    text = f'{text} Read "{trap}" in the guide.'
    return Diagnosis(code, ranks, text, last_reduce(seen), GUIDE)
