"""What a submission returned, as a probe reports it; of the wrong type, it says so by itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from torch import Tensor

Item = TypeVar("Item")
MOST = 10_000  # items of an iterator; nothing that a suite asks for has so many


def number_or_nan(value: Any) -> float:
    """Return a number, an array or a tensor of one element as a float; NaN for anything else."""
    if isinstance(value, str):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan


def is_number(value: Any) -> bool:
    """Tell whether a value stands for one number; NaN is one, too."""
    return not math.isnan(number_or_nan(value)) or isinstance(value, float | Tensor)


def numbers_of(entry: Any, names: Collection[str], what: str) -> dict[str, float]:
    """Return the numbers of these names in a dict; it may lack some, and have other entries.

    Args:
        entry: what should be the dict.
        names: of the entries that should be numbers.
        what: the function and what it returned: "evaluate returns".

    Raises:
        TypeError: it is no dict, or one of the entries is not a number.
    """
    if not isinstance(entry, Mapping):
        wanted = ", ".join(sorted(names))
        raise TypeError(f"{what} {_a(entry)}: a dict with {wanted} is expected")
    found = {name: entry[name] for name in sorted(names) if name in entry}
    for name, value in found.items():
        if not is_number(value):
            raise TypeError(f"{what} {_a(value)} as {name!r}: a number is expected")
    return {name: number_or_nan(value) for name, value in found.items()}


def tensor_of(value: Any, what: str) -> Tensor:
    """Return a tensor that was returned.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} {_a(value)}: a tensor is expected")
    return value


def items_of(values: Iterable[Item], what: str) -> Sequence[Item]:
    """Return all that an iterator yields.

    Raises:
        TypeError: it is endless, as far as one can tell.
    """
    items = list(islice(values, MOST + 1))
    if len(items) > MOST:
        raise TypeError(f"{what} does not end: more than {MOST:,} items came")
    return items


def _a(value: Any) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
