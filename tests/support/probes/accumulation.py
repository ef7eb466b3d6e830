"""Inputs for tests of accumulated steps: a model, its optimizer, and batches for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from support.probes.seeding import seed_weights

LEARNING_RATE, MOMENTUM = 0.2, 0.9
UNEQUAL = [[5, 2, 1], [1, 4, 3], [3, 1, 4]]  # samples, by rank and microbatch


class Net(nn.Module):
    """A classifier of float64 with a frozen layer; 104 trainable elements."""

    def __init__(self) -> None:
        super().__init__()
        seed_weights(11)
        self.first = nn.Linear(5, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.last = nn.Linear(8, 7, bias=False)
        self.double()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.tanh(self.frozen(torch.tanh(self.first(inputs)))))
        return outputs


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD with momentum over the model's trainable parameters."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trainable, lr=LEARNING_RATE, momentum=MOMENTUM)


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of samples whose targets are classes, or numbers."""
    if targets.dim() == outputs.dim():
        return functional.mse_loss(outputs, targets)
    return functional.cross_entropy(outputs, targets)


def draw(
    rng: np.random.Generator, steps: int, sizes: Sequence[Sequence[int]], numbers: bool = False
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs (step, rank, sample, 5) and targets with very different losses.

    Targets are classes (step, rank, sample), or with `numbers` large numbers with large gradients.
    """
    shape = (steps, len(sizes), sum(sizes[0]))
    inputs = rng.standard_normal((*shape, 5)) * 3
    if numbers:
        return inputs, rng.standard_normal((*shape, 7)) * 20
    return inputs, rng.integers(0, 7, shape)
