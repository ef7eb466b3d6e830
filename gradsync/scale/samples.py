"""Measured all-reduces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one all-reduce."""

    ranks: int
    size: int  # bytes of the tensor on each rank
    seconds: float
