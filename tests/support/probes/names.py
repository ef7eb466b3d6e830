"""Models whose parameters have different names on each rank, in the same order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from support.probes.models import Placed, place

PARTS = 7  # they have 5,040 orders


def name_sets(rank_count: int, seed: int) -> list[list[str]]:
    """Return the names for each rank: different ones, of the same length, and already sorted.

    A set iterates strings in the order of their hashes. The same name has the same hash on forked
    ranks, but not in processes that torchrun starts. Different names always have different hashes.
    """
    return [[f"part{k}x{seed + rank:06d}" for k in range(PARTS)] for rank in range(rank_count)]


class Model(nn.Module):
    """A model in which a parameter's gradient is the parameter plus the sum of the inputs."""

    def forward(self, inputs: Tensor) -> Tensor:
        shift = inputs.sum()
        products = [(param * (param.detach() + shift)).sum() for param in self.parameters()]
        return torch.stack(products).sum()


def model_named(
    names: Sequence[str], rank: int, number: float = 0.0, *, buffers: bool = False
) -> nn.Module:
    """Return a model with a parameter under each name: its position plus a number.

    With `buffers`, there is also a buffer for each parameter. On each rank, a set of the parameters
    and their addresses have a different order.
    """
    order = [*range(rank, len(names)), *range(rank)]
    made = {k: Placed(torch.full((3,), number + k)) for k in order}
    model = Model()
    for k, name in enumerate(names):
        made[k].place = place(k, rank, len(names))
        model.register_parameter(name, made[k])
        if buffers:
            model.register_buffer(f"{name}_kept", torch.full((2,), 100.0 + number + k))
    return model


def first_numbers(tensors: Sequence[Tensor | None]) -> list[float | None]:
    """Return the first number of each tensor."""
    return [None if tensor is None else tensor.flatten()[0].item() for tensor in tensors]
