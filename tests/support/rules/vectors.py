"""The ranks' results as vectors: a dict of arrays for each rank, in the order of the names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.testing.values import array, close


def common_factor(values: list[Any], expected: list[Any]) -> float | None:
    """Return c if all of `values` are c times `expected`, otherwise None."""
    one, other = flat(values), flat(expected)
    if one is None or other is None or one.shape != other.shape or not other.any():
        return None
    factor = float(one @ other / (other @ other))
    return factor if close(one, factor * other) else None


def flat(values: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    """Return all numbers of a list of dicts as one vector, in the order of the names."""
    arrays = [
        array(value[name])
        for value in values
        if isinstance(value, Mapping)
        for name in sorted(value)
    ]
    if not arrays or any(a is None for a in arrays):
        return None
    return np.concatenate([a.reshape(-1) for a in arrays if a is not None])
