"""Describe how wrong values differ if no rule recognises the mistake; do not reveal the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.testing.values import ROUNDINGS, array, close, differing_ranks
from gradsync.text import ranks_text

SHOWN = 3  # names whose differences a text describes
MUCH = 1000  # times the largest element; a larger factor is noise, such as uninitialised memory
Found = tuple[str, str, float]  # a name, how it differs, and by how much if both are numbers


def describe_difference(
    values: Sequence[Any], expected: Sequence[Any], roundings: float = ROUNDINGS
) -> str:
    """Return sentences to append to "the values differ", or "" for a single bare number.

    They begin with a full stop and end without one. The error of a single number is not shown:
    together with the number itself, it would reveal the right number.
    """
    wrong = differing_ranks(values, expected, roundings)
    if not wrong:
        return ""
    first = wrong[0]
    texts = _texts(_differences(values[first], expected[first], "", roundings))
    if not texts:
        return ""
    more = len(texts) - SHOWN
    text = "; ".join(texts[:SHOWN]) + (
        f"; {more} more {'differs' if more == 1 else 'differ'}" if more > 0 else ""
    )
    same = [rank for rank in wrong[1:] if close(values[rank], values[first], roundings)]
    equal = f". The values on {ranks_text(same)} equal those on rank {first}" if same else ""
    return f". On rank {first}, {text}{equal}"


def _texts(found: Iterator[Found]) -> list[str]:
    """Return a text for each name, about the place where it differs most."""
    worst: dict[str, tuple[str, float]] = {}
    for name, text, error in found:
        if text and (name not in worst or error > worst[name][1]):
            worst[name] = text, error
    return [f"{_quoted(name) or 'the value'} {text}" for name, (text, _) in worst.items()]


def _quoted(name: str) -> str:
    """Return a name in quotes, but not a description such as "parameter 0"."""
    return f"`{name}`" if name and " " not in name else name


def _differences(value: Any, wanted: Any, name: str, roundings: float) -> Iterator[Found]:
    """Yield each difference, down to single tensors and numbers."""
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
            yield name, f"has length {len(value)}, not {len(wanted)}", np.inf
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
        return f"has shape {list(one.shape)}, not {list(other.shape)}", np.inf
    if not np.isfinite(one).all():
        return "contains NaN or infinity", np.inf
    if not np.isfinite(other).all():
        return "should contain NaN or infinity, but does not", np.inf
    if one.size == 1:
        return "has a wrong value" if named else "", 0.0
    error, largest = np.max(np.abs(one - other)), np.max(np.abs(other))
    if largest == 0:
        return "is not zero", np.inf
    share = float(error / largest)
    if share > MUCH:
        return f"differs by more than {MUCH} times the largest expected element", share
    much = _percent(100 * share) if share < 1 else f"{share:.0f} times"
    return f"differs by up to {much} {'of ' * (share < 1)}the largest expected element", share


def _percent(number: float) -> str:
    return f"{number:.1g} %" if number < 9.5 else f"{number:.0f} %"  # .1g writes 10 as 1e+01
