"""Check and convert the values that a submission returns."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import FrameType
from typing import Any, TypeVar

from torch import Tensor

from gradsync.ranks.protocol.user_files import file_and_line
from gradsync.text import FORGOTTEN, no_float

Item = TypeVar("Item")
MANY = 10_000  # items of an iterator: far more than any test needs
SHOWN = 60  # characters of a value in a message


class WrongReturn(TypeError):  # noqa: N818 - named like the code of the mistake
    """A function returned a value of the wrong type; `exceptions.py` recognises it by name."""


def described(value: Any) -> str:
    """Return the value if it is short and plain, with its type: "a str, '25 %'", or "None"."""
    if value is None:
        return "None"
    kind = type(value).__name__
    article = "an" if kind[:1] in "aeiou" else "a"
    plain = isinstance(value, (str, int, float, bool)) and len(repr(value)) <= SHOWN
    return f"{article} {kind}, {value!r}" if plain else f"{article} {kind}"


def without_return(value: Any) -> str:
    """Return a question about a missing return, with a space before it, if a value is None."""
    return f" {FORGOTTEN}" if value is None else ""


def call_with_line(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, str]:
    """Call a function; return its value and the line that returned it: "template_trainer.py:91".

    The line is in the function itself, not in its decorators; "" if it is not known.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    lines = [""]

    def watch(frame: FrameType, event: str, _arg: Any) -> None:
        if event == "return" and frame.f_code is code:
            lines.append(file_and_line(code.co_filename, frame.f_lineno))

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        value = function(*args, **options)
    finally:
        sys.setprofile(before)
    return value, lines[-1]


def float_returned(value: Any, function: str) -> float:
    """Return the float that a function returned.

    Raises:
        WrongReturn: it is not a float, even if it is a different kind of number.
    """
    if not isinstance(value, float):
        raise WrongReturn(no_float(function, [type(value).__name__]))
    return value


def loaders_of(value: Any) -> tuple[Any, Any]:
    """Return the two loaders that create_dataloaders returned.

    Raises:
        WrongReturn: it returned something else.
    """
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return value[0], value[1]
    count = f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    raise WrongReturn(
        f"create_dataloaders returns {described(value)}{count}. It must return a tuple of two, "
        f"(train_loader, val_loader).{without_return(value)}"
    )


def number_of(value: Any, what: str) -> float:
    """Return a number as a float; a tensor with one element is a number too.

    Raises:
        WrongReturn: `value` is not a number.
    """
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise WrongReturn(f"{what} is {described(value)}. It must be a number.") from None


def numbers_of(mapping: Any, keys: Sequence[str], what: str) -> dict[str, float]:
    """Return the numbers under these keys; other keys are allowed.

    If a key is missing, return the mapping's own keys, each with a 0. None has no keys.

    Raises:
        WrongReturn: it has another type, or a value is not a number.
    """
    if mapping is None:
        return {}
    if not isinstance(mapping, Mapping):
        wanted = f"{', '.join(keys[:-1])} and {keys[-1]}"
        raise WrongReturn(f"{what} is {described(mapping)}. It must be a dict with {wanted}.")
    if not set(keys) <= set(mapping):
        return {str(key): 0.0 for key in mapping}
    return {key: number_of(mapping[key], f"`{key}` in {what}") for key in keys}


def number_or_nan(value: Any) -> float:
    """Return a number as a float, like `number_of`, or NaN for anything else."""
    try:
        return number_of(value, "it")
    except WrongReturn:
        return math.nan


def tensor_returned(value: Any, function: str) -> Tensor:
    """Return the tensor that a function returned.

    Raises:
        WrongReturn: `value` is something else.
    """
    if not isinstance(value, Tensor):
        raise WrongReturn(f"{function} returns {described(value)}. It must return a tensor.")
    return value


def items_of(values: Iterable[Item], what: str) -> list[Item]:
    """Return all items of an iterable.

    Raises:
        WrongReturn: it has more than `MANY` items, so it seems endless.
    """
    items = list(islice(values, MANY + 1))
    if len(items) > MANY:
        first = ", ".join(described(item) for item in items[:3])
        raise WrongReturn(f"{what} does not end: it yielded {MANY:,} items, first {first}.")
    return items
