"""Values that are nearly right: on their way they lost digits, in a dtype that is too coarse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import last_line
from gradsync.diagnose.values import FLOAT32, array, close
from gradsync.records import Diagnosis, Observation

# In roundings of float32, which is what `close` counts in.
OF_FLOAT64 = 2.0**-40 / FLOAT32  # what float64 keeps through thousands of sums, and float32 can't
OF_BFLOAT16 = 2.0**-7 / FLOAT32  # what the coarsest dtype in use still keeps of a sum
MOST_DIGITS = 4  # behind the point, of a loss that somebody rounded


def rounded(what: str, guide: str) -> Rule:
    """Return the rule for values that are off by no more than a coarser dtype makes them.

    Args:
        what: the values should be, "the sum over the ranks".
        guide: the heading of GUIDELINES.md to read.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not close(_floats(list(seen)), _floats(expected), OF_BFLOAT16):
            return None
        text = (
            f"every number is nearly {what}, but not as exactly as its dtype can hold: somewhere "
            "on the way it was in a coarser one. What is sent and added up has to have the "
            "tensor's own dtype"
        )
        ranks = tuple(range(seen.world_size))
        return Diagnosis("shape-mismatch", ranks, text, last_line(seen), guide)

    return rule


def cut_short(function: str, guide: str) -> Rule:
    """Return the rule for a mean loss that was rounded to a few digits, or to an integer."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not all(isinstance(value, float) for value in seen):
            return None
        for digits in range(MOST_DIGITS + 1):
            pairs = zip(seen, expected, strict=True)
            if all(_cut(v, digits) and abs(v - w) < 10.0**-digits for v, w in pairs):
                text = (
                    f"{function} returns {seen[0]:g}, which is the loss with no more than {digits} "
                    "digits behind the point: it is returned as it is, and rounded where it is "
                    "printed"
                )
                ranks = tuple(range(seen.world_size))
                code = "differs-from-single-process"
                return Diagnosis(code, ranks, text, last_line(seen), guide)
        return None

    return rule


def _cut(number: float, digits: int) -> bool:
    """Tell whether it has no more digits than these, but for those of its way through float32."""
    return abs(number - round(number, digits)) <= FLOAT32 * abs(number)


def _floats(value: Any) -> Any:
    """Return the value with its integers, which `close` wants exact, as floats."""
    if isinstance(value, Mapping):
        return {name: _floats(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_floats(part) for part in value]
    return array(value)
