"""Optimizers whose state can be counted even if a submission wraps them, and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook


def watched(kind: type[torch.optim.Optimizer]) -> tuple[type[torch.optim.Optimizer], list[Any]]:
    """Return a subclass of the optimizer class `kind`, and a list of all its later instances."""
    made: list[Any] = []

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    return Watched, made


@contextmanager
def optimizer_states() -> Iterator[list[list[str]]]:
    """Record the names of the tensors that torch's optimizers keep, before each of their steps."""
    states: list[list[str]] = []

    def note(optimizer: torch.optim.Optimizer, *_: object) -> None:
        kept = [item for own in optimizer.state.values() for item in own.items()]
        states.append(sorted({name for name, value in kept if isinstance(value, Tensor)}))

    hook = register_optimizer_step_pre_hook(note)
    try:
        yield states
    finally:
        hook.remove()


def elements(states: Iterable[Mapping[Any, Mapping[str, Any]]]) -> int:
    """Return how many elements these states have; a tensor in several states counts once."""
    tensors = {id(t): t for state in states for kept in state.values() for t in kept.values()}
    kept = [t for t in tensors.values() if isinstance(t, Tensor) and t.dim() > 0]
    return sum(t.numel() for t in kept if t.is_floating_point())


def parameters(values: Sequence[Tensor], rank: int) -> list[nn.Parameter]:
    """Return parameters with these values, created in reversed order on every second rank.

    This gives their addresses a different order, and their hashes give one to a set of them.
    """
    order = range(len(values))
    made = {}
    for place, index in enumerate(reversed(order) if rank % 2 else order):
        made[index] = _Placed(values[index])
        made[index].place = place
    return [made[index] for index in order]


class _Placed(nn.Parameter):
    """A parameter with a place in a set, where others have one by their addresses."""

    place: int

    def __hash__(self) -> int:
        return self.place
