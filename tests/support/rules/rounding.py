"""Values that are nearly right: they were rounded to a lower precision, or to a few digits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import FLOAT32, array, close
from gradsync.text import counted
from support.rules.vectors import flat
from support.rules.wrong_results import last_line

# In roundings of float32, the unit of `close`.
OF_FLOAT64 = 2.0**-40 / FLOAT32  # float64 stays within it over thousands of sums, float32 does not
OF_BFLOAT16 = 2.0**-7 / FLOAT32  # a sum in bfloat16, the coarsest dtype in use, stays within it
MOST_DIGITS = 4  # decimal places of a loss that was rounded


def without_fractions(guide: str) -> Rule:
    """Return the rule for gradients that are the mean, rounded to whole numbers."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        values, means = flat(list(seen)), flat(list(expected or ()))
        if values is None or means is None or not values.any():
            return None
        if not any(close(values, whole(means)) for whole in (np.floor, np.trunc, np.rint)):
            return None
        text = (
            "Every element is the mean over the ranks, rounded to a whole number. `//` drops the "
            "fraction, and so does a conversion to an integer dtype. Divide with `/`, in the "
            "gradient's own dtype."
        )
        ranks = tuple(range(seen.world_size))
        return Diagnosis("differs-from-single-process", ranks, text, last_line(seen), guide)

    return rule


def rounded(what: str, guide: str) -> Rule:
    """Return the rule for values whose error can come from a dtype of lower precision.

    Args:
        what: the right values, such as "the sum over the ranks".
        guide: the heading of GUIDELINES.md to read.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not close(_floats(list(seen)), _floats(expected), OF_BFLOAT16):
            return None
        if is_short(expected):
            return None
        text = (
            f"Every number is nearly {what}, but less exact than its dtype allows: the numbers "
            "were converted to a dtype of lower precision. Send and add up each tensor in its own "
            "dtype."
        )
        ranks = tuple(range(seen.world_size))
        return Diagnosis("shape-mismatch", ranks, text, last_line(seen), guide)

    return rule


def rounded_loss(function: str, guide: str) -> Rule:
    """Return the rule for a mean loss that was rounded to a few digits, or to an integer."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not all(isinstance(value, float) for value in seen):
            return None
        for digits in range(MOST_DIGITS + 1):
            pairs = zip(seen, expected, strict=True)
            if all(_cut(v, digits) and abs(v - w) < 10.0**-digits for v, w in pairs):
                text = (
                    f"{function} returns {seen[0]:g}, the loss rounded to "
                    f"{counted(digits, 'decimal place')}. Return the exact value and round it only "
                    "for printing."
                )
                ranks = tuple(range(seen.world_size))
                code = "differs-from-single-process"
                return Diagnosis(code, ranks, text, last_line(seen), guide)
        return None

    return rule


def is_short(expected: Any) -> bool:
    """Return whether low precision has all expected numbers exactly, such as small integers."""
    if isinstance(expected, Mapping):
        return all(map(is_short, expected.values()))
    if isinstance(expected, (list, tuple)):
        return all(map(is_short, expected))
    numbers = torch.as_tensor(array(expected)).double()
    return bool((numbers.bfloat16() == numbers).all())


def _cut(number: float, digits: int) -> bool:
    """Return whether a number has at most `digits` decimal places, within float32's precision."""
    return abs(number - round(number, digits)) <= FLOAT32 * abs(number)


def _floats(value: Any) -> Any:
    """Return the value with integers as floats, because `close` compares integers exactly."""
    if isinstance(value, Mapping):
        return {name: _floats(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_floats(part) for part in value]
    return array(value)
