"""A model and an optimizer that have taken steps, and their state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from support.probes.seeding import seed_weights


def make(seed: int, size: int = 8) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return a model and an optimizer after two steps; the seed also sets their settings."""
    seed_weights(seed)
    model = nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size), nn.Linear(size, 2))
    model[2].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1 + seed, momentum=0.9 - 0.2 * seed, weight_decay=0.01 * seed
    )
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.rand(4, size)).sum().backward()
        optimizer.step()
    return model, optimizer


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return the weights, the momenta, and the optimizer's settings."""
    momenta = [s["momentum_buffer"].clone() for s in optimizer.state_dict()["state"].values()]
    [group] = optimizer.param_groups
    settings = {name: value for name, value in group.items() if name != "params"}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return [weights, momenta, settings]


def weights_after_a_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Take a step with gradients of ones; return the weights."""
    for param in model.parameters():
        if param.requires_grad:
            param.grad = torch.ones_like(param)
    optimizer.step()
    return dict(model.state_dict())
