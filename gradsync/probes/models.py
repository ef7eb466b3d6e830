"""A model with everything that a broadcast can forget, or change on the way."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BUFFERS = ["1.running_mean", "1.running_var", "1.num_batches_tracked", "mask"]


def motley_model(seed: int, *, spoilt: bool = False) -> nn.Module:
    """Return a model of several dtypes, other weights for another seed.

    One weight is -0.0, which no sum with zeros leaves as it is; in a `spoilt` model it is NaN, and
    so is every sum that it is in. A count is too large for float32.
    """
    torch.manual_seed(seed)
    norm, head = nn.BatchNorm2d(3), nn.Linear(12, 4)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), norm, nn.Flatten(), head)
    head.bias.requires_grad_(False)
    model.register_parameter("scale", nn.Parameter(torch.rand(3, dtype=torch.float64)))
    model.register_buffer("mask", torch.rand(5) > 0.5, persistent=False)
    with torch.no_grad():
        head.weight[0, 0] = float("nan") if spoilt else -0.0
        for name, buffer in norm.named_buffers():
            buffer.add_(2**40 + 1 + seed if name == "num_batches_tracked" else torch.rand(3))
    return model


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers, by name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}
