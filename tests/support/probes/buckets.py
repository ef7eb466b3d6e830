"""A model whose parameters can be unused, tied, frozen or of mixed dtypes, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from support.probes.seeding import seed_weights

Order = Sequence[int]  # the branches that a pass uses, in order
ALL = (0, 1, 2)
WIDE = 32  # the tied weight has WIDE * WIDE elements, most of the elements of its model
SMALL = 2.3e-4  # MiB, 30 numbers of float64: two to four of the parameters below


class Scale(nn.Module):
    """Multiplies by a trainable factor: a tensor without dimensions, of float64."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.5).double())

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


class Net(nn.Module):
    """A float64 model of a head, and of branches that a pass uses in any order, or not at all."""

    def __init__(self, extra: str = "") -> None:
        super().__init__()
        seed_weights(5)
        wide = [nn.Sequential(nn.Linear(4, k), nn.Tanh(), nn.Linear(k, 4)) for k in (2, 3, 5)]
        self.branches = nn.ModuleList(wide)
        self.between, self.more = nn.Sequential(), nn.Sequential()
        if extra == "tied":
            inner = [nn.Linear(WIDE, WIDE), nn.Tanh(), nn.Linear(WIDE, WIDE)]
            inner[2].weight = inner[0].weight
            self.more = nn.Sequential(nn.Linear(4, WIDE), nn.Tanh(), *inner, nn.Linear(WIDE, 4))
        if extra == "spare":
            self.spare = nn.Linear(3, 3)
            self.more.append(nn.Linear(4, 4).requires_grad_(False))
        self.head = nn.Linear(4, 2)
        self.last = nn.Sequential()
        self.double()
        if extra == "mixed":
            self.more.append(Scale())
            self.between.append(nn.Linear(4, 3))  # these two are of float32
            self.last.append(nn.Linear(4, 2))

    def forward(self, inputs: Tensor, order: Order) -> Tensor:
        hidden = inputs
        for number in order:
            hidden = hidden + self.branches[number](hidden)
        # The float32 layers do not influence the float64 gradients.
        layers = [*self.between, *self.last]
        narrow = [layer(inputs.float()).double() for layer in layers]
        return torch.cat([self.head(self.more(hidden)), *narrow], dim=-1)


def draw(rng: np.random.Generator, passes: int, world_size: int) -> NDArray[Any]:
    """Return inputs (pass, rank, sample, 4)."""
    return rng.standard_normal((passes, world_size, 3, 4))


def backward(model: nn.Module, inputs: NDArray[Any], order: Order = ALL) -> None:
    """Run one pass, forward and backward."""
    loss = model(torch.from_numpy(inputs), order).square().sum()
    loss.backward()


def gradients_of(model: nn.Module) -> dict[str, Tensor | None]:
    """Return copies of all gradients, by name."""
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def zero_for_none(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad


def own_gradients(
    inputs: NDArray[Any], orders: Sequence[Order] = (ALL,) * 4, extra: str = ""
) -> list[dict[str, Tensor]]:
    """Return, for each rank, the sum of its own gradients over these passes."""
    found = []
    for rank in range(inputs.shape[1]):
        model = Net(extra)
        for given in inputs:
            backward(model, given[rank], orders[rank])
        trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
        found.append({n: zero_for_none(p.grad, p.detach()) for n, p in trainable.items()})
    return found
