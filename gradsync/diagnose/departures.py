"""Buckets that left before a gradient was in them, or changed on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.buckets import GUIDE
from gradsync.diagnose.gradients import Gradients, last_reduce, mean_of, wrong_names
from gradsync.diagnose.values import close
from gradsync.records import Diagnosis, Observation

FINAL = "The hook must see the final gradient"
OVERWRITTEN = "Overwriting what is on its way"


def left_too_early(earlier: Sequence[Gradients], code: str) -> Rule:
    """Return the rule for some gradients that are what was there before the last backward.

    Args:
        earlier: by rank, what the passes before it had left in `grad`.
        code: of the mistake.
    """
    mean, size = mean_of(earlier), len(earlier)
    nothing = {name: value * 0 for name, value in mean.items()}
    states: list[tuple[str, Sequence[Gradients]]] = [
        ("zero, as `grad` was before this backward", [nothing] * size),
        ("the mean of what was in `grad` before the last backward", [mean] * size),
        ("what was in `grad` before the last backward", list(earlier)),
    ]

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = wrong_names(seen, expected)
        if not wrong or len(wrong) == len(expected[0]):
            return None
        for what, state in states:
            if all(close(seen[r].get(n), own[n]) for r, own in enumerate(state) for n in wrong):
                text = (
                    f"{', '.join(wrong)}: {what}, while all other gradients are the mean over the "
                    "ranks. The bucket left before the new gradient had been added to `grad`"
                )
                return _found(code, seen, text, FINAL)
        return None

    return rule


def overwritten(local: Sequence[Gradients]) -> Rule:
    """Return the rule for some gradients that a second backward spoiled on their way.

    Args:
        local: by rank, the sum over both passes: what it has where no bucket held the parameter.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        wrong = wrong_names(seen, expected)
        if not wrong or len(wrong) == len(expected[0]):
            return None
        if all(close(seen[r].get(n), own[n]) for r, own in enumerate(local) for n in wrong):
            return None
        text = (
            f"{', '.join(wrong)} did not end as the mean over the ranks of both passes, while all "
            "other gradients did. What left in these buckets may be the very memory of `grad`, a "
            "view of it and no copy: a second backward then adds to what is on its way"
        )
        return _found("only-some-parameters", seen, text, OVERWRITTEN)

    return rule


def _found(code: str, seen: Observation, text: str, trap: str) -> Diagnosis:
    ranks = tuple(range(seen.world_size))
    text = f'{text}. The guide describes this under "{trap}"'
    return Diagnosis(code, ranks, text, last_reduce(seen), GUIDE)
