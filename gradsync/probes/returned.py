"""Values that a submission returns, as far as a test can use them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from torch import Tensor

Item = TypeVar("Item")
MANY = 10_000  # items of an iterator: far more than any test asks for
SHOWN = 60  # characters of a value in a message


class WrongReturn(TypeError):  # noqa: N818 - what a learner did, by the name of its code
    """A function returned another type than promised; `ranks.exceptions` knows it by this name."""


def described(value: Any) -> str:
    """Return the value if it is short and plain, with its type: "a str, '25 %'", or "None"."""
    if value is None:
        return "None"
    kind = type(value).__name__
    article = "an" if kind[:1] in "aeiou" else "a"
    plain = isinstance(value, (str, int, float, bool)) and len(repr(value)) <= SHOWN
    return f"{article} {kind}, {value!r}" if plain else f"{article} {kind}"


def number_of(value: Any, what: str) -> float:
    """Return a number as a float; a tensor of one element is one too.

    Raises:
        WrongReturn: `value` is not a number.
    """
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise WrongReturn(f"{what} is {described(value)}: a number is wanted") from None


def numbers_of(mapping: Any, keys: Sequence[str], what: str) -> dict[str, float]:
    """Return the numbers under these keys; other keys may be there too.

    Where one is missing, the mapping's own keys are returned, each with a 0. None has no keys.

    Raises:
        WrongReturn: it is another type, or a value is not a number.
    """
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        wanted = f"{', '.join(keys[:-1])} and {keys[-1]}"
        raise WrongReturn(f"{what} is {described(mapping)}: a dict with {wanted} is wanted")
    if not set(keys) <= set(mapping):
        return {str(key): 0.0 for key in mapping}
    return {key: number_of(mapping[key], f"`{key}` in {what}") for key in keys}


def number_or_nan(value: Any) -> float:
    """Return a number as a float, as `number_of` does; NaN for anything else."""
    try:
        return number_of(value, "it")
    except WrongReturn:
        return math.nan


def tensor_of(value: Any, what: str) -> Tensor:
    """Return a tensor.

    Raises:
        WrongReturn: `value` is something else.
    """
    if not isinstance(value, Tensor):
        raise WrongReturn(f"{what} is {described(value)}: a tensor is wanted")
    return value


def items_of(values: Iterable[Item], what: str) -> list[Item]:
    """Return all items of an iterable.

    Raises:
        WrongReturn: it is endless, as far as one can tell.
    """
    items = list(islice(values, MANY + 1))
    if len(items) > MANY:
        first = ", ".join(described(item) for item in items[:3])
        raise WrongReturn(f"{what} does not end: it has yielded {MANY:,} items, first {first}")
    return items
