"""What is told of values that are wrong in no known way: where and how far, not what was wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.diagnose.values import ROUNDINGS, array, close, differing_ranks
from gradsync.text import ranks_text

SHOWN = 3  # names of which each is told how it differs
MUCH = 1000  # times the largest element: new memory may hold anything, and other things each time
Found = tuple[str, str, float]  # a name, how it differs, and how far if both are numbers


def told_difference(
    values: Sequence[Any], expected: Sequence[Any], roundings: float = ROUNDINGS
) -> str:
    """Return what to say after that values differ: in what way they do; "" of a bare number.

    How far a single number is off is not told: with the number itself, that would be its right one.
    """
    wrong = differing_ranks(values, expected, roundings)
    if not wrong:
        return ""
    first = wrong[0]
    texts = _texts(_differences(values[first], expected[first], "", roundings))
    if not texts:
        return ""
    more = len(texts) - SHOWN
    told = "; ".join(texts[:SHOWN]) + (f"; and {more} more differ" if more > 0 else "")
    alike = [rank for rank in wrong[1:] if close(values[rank], values[first], roundings)]
    as_well = f", and {ranks_text(alike)} ended with the same" if alike else ""
    return f". On rank {first} {told}{as_well}"


def _texts(found: Iterator[Found]) -> list[str]:
    """Return a text for each name, of the place where it differs most."""
    worst: dict[str, tuple[str, float]] = {}
    for name, text, error in found:
        if text and (name not in worst or error > worst[name][1]):
            worst[name] = text, error
    return [f"{name or 'what it ended with'} {text}" for name, (text, _) in worst.items()]


def _differences(value: Any, wanted: Any, name: str, roundings: float) -> Iterator[Found]:
    """Go down to the numbers that differ."""
    if close(value, wanted, roundings):
        return
    if isinstance(wanted, Mapping) and isinstance(value, Mapping):
        for key in wanted:
            inner = f"{name}.{key}" if name else str(key)
            if key in value:
                yield from _differences(value[key], wanted[key], inner, roundings)
            else:
                yield inner, "is missing", np.inf
    elif isinstance(wanted, (list, tuple)) and isinstance(value, (list, tuple)):
        if len(value) != len(wanted):
            yield name, f"has the length {len(value)}, not {len(wanted)}", np.inf
        for one, other in zip(value, wanted, strict=False):
            yield from _differences(one, other, name, roundings)
    else:
        text, error = _difference(value, wanted, named=bool(name))
        yield name, text, error


def _difference(value: Any, wanted: Any, *, named: bool) -> tuple[str, float]:
    one, other = array(value), array(wanted)
    if one is None or other is None:
        return f"is {'None' if value is None else f'a {type(value).__name__}'}", np.inf
    if one.shape != other.shape:
        return f"has the shape {list(one.shape)}, not {list(other.shape)}", np.inf
    if not np.isfinite(one).all():
        return "holds NaN or infinity", np.inf
    if not np.isfinite(other).all():
        return "holds no NaN or infinity", np.inf
    if one.size == 1:
        return "is another number than it should be" if named else "", 0.0
    error, largest = np.max(np.abs(one - other)), np.max(np.abs(other))
    if largest == 0:
        return "is not zero", np.inf
    share = float(error / largest)
    if share > MUCH:
        return f"is off by more than {MUCH} times its largest element", share
    times = f"{share:.1g}" if share < 1 else f"{share:.0f}"
    return f"is off by up to {times} times its largest element", share
