"""Inputs for tests of accumulated steps: a model, its optimizer, and batches for each rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from support.probes.bucket_marks import mark
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


def noted_calls(averager: Any, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return a list that gets "finish" and "step" when these methods are called."""
    calls: list[str] = []
    with suppress(AttributeError):  # a class with __slots__: its methods can't be replaced
        finish = averager.finish

        def finish_and_note(*args: Any, **options: Any) -> Any:
            calls.append("finish")
            return finish(*args, **options)

        averager.finish = finish_and_note
        optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    return calls


def open_blocks(averager: Any) -> list[str]:
    """Return a list with one item for each block of averager.no_sync() that is open."""
    blocks: list[str] = []
    plain = averager.no_sync

    @contextmanager
    def no_sync() -> Iterator[None]:
        with plain():
            blocks.append("no_sync")
            try:
                yield
            finally:
                blocks.pop()

    with suppress(AttributeError):  # a class with __slots__: its methods can't be replaced
        averager.no_sync = no_sync
    return blocks


def watched_steps(
    trainer: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: Sequence[Sequence[tuple[Tensor, Tensor]]],
    loss: Callable[[Tensor, Tensor], Tensor],
) -> dict[str, Any]:
    """Take a step on each list of microbatches; return a description of the last one.

    `losses` is the number of calls of the loss function, `depths` is the number of open no_sync()
    blocks in each backward, and `kept` is whether the model stays in its mode, which is evaluation
    in one more step before the others. Mark 1 is made before each step, mark 2 in the loss of its
    last microbatch, and mark 3 at its end.
    """
    group = dist.new_group()
    averager = trainer.BucketedGradientAverager(model)
    calls: list[int] = []
    depths: list[int] = []
    modes: list[bool] = []
    blocks = open_blocks(averager)
    for number, microbatches in enumerate([*steps[:1], *steps]):
        model.train(trains := number > 0)

        def loss_fn(outputs: Tensor, targets: Tensor, last: int = len(microbatches)) -> Tensor:
            calls.append(len(targets))
            modes.append(model.training == trains)
            if len(calls) == last:
                mark(group, 2)
            noted = depths.append
            outputs.register_hook(lambda _: noted(len(blocks)))  # type: ignore[no-untyped-call]
            return loss(outputs, targets)

        calls.clear()
        depths.clear()
        mark(group, 1)
        trainer.train_step_accumulated(model, microbatches, loss_fn, optimizer, averager)
        mark(group, 3)
        modes.append(model.training == trains)
    return {"losses": len(calls), "depths": depths, "kept": all(modes)}
