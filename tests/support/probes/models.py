"""Models with all tensors that a broadcast can miss, and with set orders that differ by rank."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from support.probes.seeding import seed_weights

BUFFERS = ["1.running_mean", "1.running_var", "1.num_batches_tracked", "mask"]
FIRST_PLACE = 5  # in a small set, buffers are at 0 or 16, like parameters hashed by address


class Placed(nn.Parameter):
    """A parameter with a chosen place in a set; normally its address decides the place."""

    place: int | None = None  # None: the address decides, as for a copy

    def __hash__(self) -> int:
        return id(self) if self.place is None else self.place


def place(number: int, rank: int, count: int) -> int:
    """Return the place of one of `count` parameters; each rank starts with a different one."""
    return FIRST_PLACE + (number - rank) % count


def placed(model: nn.Module, rank: int) -> nn.Module:
    """Replace the parameters, so that a set iterates them in a different order on each rank.

    It simulates the order of addresses, which differs between processes, but is usually the same in
    ranks that were forked from one process.
    """
    known = list(model.parameters())
    new = {}
    for number, old in enumerate(known):
        new[old] = Placed(old.detach(), requires_grad=old.requires_grad)
        new[old].grad = old.grad
        new[old].place = place(number, rank, len(known))
    for module in model.modules():
        for name, param in module._parameters.items():
            if param is not None:
                module._parameters[name] = new[param]
    return model


def motley_model(seed: int, rank: int = 0, *, spoilt: bool = False) -> nn.Module:
    """Return a model of several dtypes, with weights of this seed, `placed` for this rank.

    One weight is -0.0, which a sum with zeros changes. In a `spoilt` model it is NaN, and so is
    every sum that includes it. One buffer is an integer too large for float32. The weight of the
    convolution is dense but not contiguous (`channels_last`), so `contiguous()` copies it.
    """
    seed_weights(seed)
    conv, norm, head = nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Linear(12, 4)
    conv.weight.data = conv.weight.data.contiguous(memory_format=torch.channels_last)
    model = nn.Sequential(conv, norm, nn.Flatten(), head)
    head.bias.requires_grad_(False)
    model.register_parameter("scale", nn.Parameter(torch.rand(3, dtype=torch.float64)))
    model.register_buffer("mask", torch.rand(5) > 0.5, persistent=False)
    with torch.no_grad():
        head.weight[0, 0] = float("nan") if spoilt else -0.0
        for name, buffer in norm.named_buffers():
            buffer.add_(2**40 + 1 + seed if name == "num_batches_tracked" else torch.rand(3))
    return placed(model, rank)


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all parameters and buffers, by name."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}
