"""A model that notes how it is called, and what an evaluation does to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Spy(nn.Module):
    """A linear classifier of float64 that notes how it was called; always the same weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.Linear(4, 3).double()
        self.calls: list[tuple[bool, bool, int]] = []  # training, gradients tracked, samples

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls.append((self.training, torch.is_grad_enabled(), len(inputs)))
        outputs: Tensor = self.layer(inputs)
        return outputs


def spied_evaluation(
    rank: int, evaluate: Callable[[nn.Module], Mapping[str, float]]
) -> dict[str, Any]:
    """Evaluate a spy that has a gradient, on rank 1 one in evaluation mode.

    Returns:
        `result`, what was returned; `calls` of the model; `kept_mode` and `kept_grad`, whether
        these are as they were.
    """
    model = Spy().train(rank != 1)
    model.layer.weight.grad = torch.full((3, 4), 2.0).double()
    result = evaluate(model)
    weight, bias = model.layer.weight, model.layer.bias
    kept = weight.grad is not None and bool((weight.grad == 2).all()) and bias.grad is None
    return {
        "result": {name: float(value) for name, value in dict(result).items()},
        "calls": [list(call) for call in model.calls],
        "kept_mode": [m.training for m in (model, model.layer)] == [rank != 1] * 2,
        "kept_grad": kept,
    }
