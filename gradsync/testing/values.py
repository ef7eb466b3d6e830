"""Compare values of any structure, up to the rounding of their dtypes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# A sum of N terms in a different order is off by at most N roundings of its largest partial sum,
# and a correct answer may convert numbers to float32, torch's default, whatever the model's dtype
# is. 64 such roundings are 8e-6 of the largest element; mistakes are off by at least a hundredth.
ROUNDINGS = 64.0
FLOAT32 = 2.0**-23
COARSER = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
EXACT = 0.0


def differing_ranks(seen: Sequence[Any], expected: Sequence[Any], roundings: float) -> list[int]:
    """Return the ranks whose value differs from the expected one."""
    return [
        rank
        for rank, (value, wanted) in enumerate(zip(seen, expected, strict=True))
        if not close(value, wanted, roundings)
    ]


def close(value: Any, wanted: Any, roundings: float = ROUNDINGS) -> bool:
    """Return whether two values agree: numbers up to `roundings`, anything else exactly."""
    if isinstance(wanted, Mapping):
        return (
            isinstance(value, Mapping)
            and value.keys() == wanted.keys()
            and all(close(value[key], wanted[key], roundings) for key in wanted)
        )
    if isinstance(wanted, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(wanted)
            and all(close(v, w, roundings) for v, w in zip(value, wanted, strict=True))
        )
    if wanted is None or isinstance(wanted, (str, bytes, bool)):
        return type(value) is type(wanted) and bool(value == wanted)
    return _close_arrays(value, wanted, roundings)


def array(value: Any) -> np.ndarray[Any, Any] | None:
    """Return a number, array or tensor as a float64 (or complex) array; None for anything else."""
    if value is None or isinstance(value, (str, bytes, Mapping)):
        return None
    if hasattr(value, "detach"):  # a tensor: bfloat16 has no numpy dtype
        value = value.detach().double().numpy() if not value.is_complex() else value.numpy()
    try:
        return np.asarray(value, dtype=np.complex128 if np.iscomplexobj(value) else np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def precision(value: Any) -> float:
    """Return the relative size of a rounding in the value's dtype; 0 for integers."""
    name = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    return 0.0 if name.startswith(("int", "uint", "bool")) else COARSER.get(name, FLOAT32)


def _close_arrays(value: Any, wanted: Any, roundings: float) -> bool:
    one, other = array(value), array(wanted)
    if one is None or other is None or one.shape != other.shape:
        return False
    if one.size == 0:
        return True
    if not (np.isfinite(one).all() and np.isfinite(other).all()):
        return bool(np.array_equal(one, other, equal_nan=True))
    scale = float(np.max(np.abs(other)))
    tolerance = roundings * max(precision(value), precision(wanted)) * scale
    return bool(np.max(np.abs(one - other)) <= tolerance)
