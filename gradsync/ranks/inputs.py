"""Trusted: inputs that are split between the ranks: each rank receives only its own part.

A rank with the inputs of all ranks could compute the result without communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_packing: ContextVar[Packing] = ContextVar("packing")


class Packing:
    """The rank for which inputs are being pickled, and whether they differ between ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.differs = False


class OfRanks:
    """One item for each rank; on a rank it becomes a dict with only that rank's item."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __reduce__(self) -> tuple[type[dict[int, Any]], tuple[list[tuple[int, Any]]]]:
        packing = _packing.get()
        packing.differs = True
        return dict, ([(packing.rank, self._items[packing.rank])],)


def by_rank(items: Any, depth: int = 0) -> Any:
    """Split inputs: each rank receives only `items[rank]`, at each index of `depth` outer axes."""
    if depth:
        return [by_rank(item, depth - 1) for item in items]
    return OfRanks(items)


@contextmanager
def packing_for(rank: int) -> Iterator[Packing]:
    """Set the rank that inputs are pickled for, while the block runs."""
    packing = Packing(rank)
    token = _packing.set(packing)
    try:
        yield packing
    finally:
        _packing.reset(token)
