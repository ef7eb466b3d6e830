"""A training step with the solution's gradient buckets, and with torch's DDP."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.figure import Figure, shown
from benchmarks.plain import on_plain_ranks, slowest, steps_in_turns

RANKS = 2
BATCH = 16  # samples per rank
WIDTHS = {"0.4 M": 272, "3.3 M": 950}  # number of parameters -> width of the hidden layers


def figures() -> Iterator[Figure]:
    """Measure complete steps: forward, backward, averaging, SGD."""
    for size, width in WIDTHS.items():
        ours, theirs = slowest(on_plain_ranks(step_times, RANKS, width))
        yield Figure(
            f"a step on {RANKS} ranks, {size} parameters",
            f"BucketedGradientAverager: {shown(ours)}",
            f"DistributedDataParallel: {shown(theirs)}",
            ours / theirs,
            "at most 1.05 times DDP's",
            ours <= 1.05 * theirs,
        )


def cnn(width: int) -> nn.Module:
    """Return a CNN for inputs (batch, 1, 28, 28) with most parameters in its hidden layers."""
    layers: list[nn.Module] = []
    for channels_in, channels in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels_in, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())  # (batch, 64 * 3 * 3)
    for features in (64 * 3 * 3, width, width, width):
        layers += [nn.Linear(features, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def step_times(width: int) -> tuple[float, float]:
    """Return this rank's median seconds for a step, ours and DDP's."""
    from template_trainer import BucketedGradientAverager

    ours = cnn(width)
    theirs = DistributedDataParallel(copy.deepcopy(ours), gradient_as_bucket_view=True)
    averager = BucketedGradientAverager(ours)
    inputs, targets = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    optimizers = {model: torch.optim.SGD(model.parameters(), lr=0.01) for model in (ours, theirs)}

    def backward(model: nn.Module) -> None:
        optimizers[model].zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()

    def our_step() -> None:
        backward(ours)
        averager.finish()
        optimizers[ours].step()

    def their_step() -> None:
        backward(theirs)
        optimizers[theirs].step()

    return steps_in_turns(our_step, their_step, steps=3, times=121)
