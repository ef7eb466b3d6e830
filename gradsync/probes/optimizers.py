"""Optimizers whose state is found however a submission wraps them, and their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def watched(kind: type[torch.optim.Optimizer]) -> tuple[type[torch.optim.Optimizer], list[Any]]:
    """Return an optimizer class like `kind`, and a list of all that are made of it from now on."""
    made: list[Any] = []

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    return Watched, made


def elements(states: Iterable[Mapping[Any, Mapping[str, Any]]]) -> int:
    """Count the numbers of these states, once where several optimizers share a tensor."""
    tensors = {id(t): t for state in states for kept in state.values() for t in kept.values()}
    kept = [t for t in tensors.values() if isinstance(t, Tensor) and t.dim() > 0]
    return sum(t.numel() for t in kept if t.is_floating_point())


def parameters(values: Sequence[Tensor], rank: int) -> list[nn.Parameter]:
    """Return parameters of these values, which lie in memory in another order on the next rank.

    Who goes by their addresses, as a set does, goes another way on each rank.
    """
    order = range(len(values))
    made = {
        index: nn.Parameter(values[index]) for index in (reversed(order) if rank % 2 else order)
    }
    return [made[index] for index in order]
