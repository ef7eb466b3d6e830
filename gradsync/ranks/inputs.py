"""Trusted: inputs of which each rank is given its own alone.

A rank that has what the others have could work out their answer with no word to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_packing: ContextVar[Packing] = ContextVar("packing")


class Packing:
    """For which rank inputs are being pickled, and whether that makes a difference."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.differs = False


class OfRanks:
    """An item for each rank; on a rank it is a dict with its own under its number, and no other."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __reduce__(self) -> tuple[type[dict[int, Any]], tuple[list[tuple[int, Any]]]]:
        packing = _packing.get()
        packing.differs = True
        return dict, ([(packing.rank, self._items[packing.rank])],)


def by_rank(items: Any, depth: int = 0) -> Any:
    """Return inputs of which a rank gets `items[rank]` alone; below `depth` outer axes, if any."""
    if depth:
        return [by_rank(item, depth - 1) for item in items]
    return OfRanks(items)


@contextmanager
def packing_for(rank: int) -> Iterator[Packing]:
    """Pickle inputs in this block as that rank is to have them."""
    packing = Packing(rank)
    token = _packing.set(packing)
    try:
        yield packing
    finally:
        _packing.reset(token)
