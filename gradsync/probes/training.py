"""A training on ranks that is spied on, and what one process makes of the same samples."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

Samples = tuple[NDArray[Any], NDArray[Any]]  # inputs (sample, ...) and targets (sample,)
LEARNING_RATE = 0.5


class Numbered(Dataset[tuple[Tensor, Tensor]]):
    """Samples that note in which order they are asked for."""

    def __init__(self, inputs: NDArray[Any], targets: NDArray[Any]) -> None:
        self.inputs, self.targets = torch.from_numpy(inputs), torch.from_numpy(targets)
        self.drawn: list[int] = []

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.drawn.append(int(index))
        return self.inputs[index], self.targets[index]


def draw_samples(rng: np.random.Generator, count: int) -> Samples:
    """Return samples with 4 numbers each, of 3 classes."""
    return rng.standard_normal((count, 4)), rng.integers(0, 3, count)


def spied_training(
    train: Callable[..., Any],
    info: Any,
    model: nn.Module,
    data: tuple[Samples, Samples],
    **options: Any,
) -> dict[str, Any]:
    """Call a submission's `train`; say what came of it.

    Returns:
        `weights`, buffers too; the `history`; `drawn`, the training samples in the order in which
        they were asked for; `lines`, what it printed.
    """
    train_set, val_set = (Numbered(*part) for part in data)
    with contextlib.redirect_stdout(io.StringIO()) as said:  # torch's warnings go to stderr
        history = train(info, model, train_set, val_set, lr=LEARNING_RATE, **options)
    return {
        "weights": {name: tensor.detach() for name, tensor in model.state_dict().items()},
        "history": [{key: float(value) for key, value in dict(row).items()} for row in history],
        "drawn": train_set.drawn,
        "lines": [line for line in said.getvalue().splitlines() if line.strip()],
    }


class Step(NamedTuple):
    """What an epoch of one step comes to."""

    weights: dict[str, Tensor]
    history: dict[str, float]  # the epoch's entry
    loss_before: float  # over the validation samples


def one_step(model: nn.Module, train: Samples, val: Samples, scale: float = 1.0) -> Step:
    """Take one process's step on all training samples; `scale` is of the step's length."""
    inputs, targets, val_inputs, val_targets = map(torch.from_numpy, (*train, *val))
    loss = nn.functional.cross_entropy(model(inputs), targets)
    before = nn.functional.cross_entropy(model(val_inputs), val_targets).item()
    params = list(model.parameters())
    gradients = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for param, gradient in zip(params, gradients, strict=True):
            param.sub_(LEARNING_RATE * scale * gradient)
        outputs = model(val_inputs)
    history = {
        "epoch": 0,
        "train_loss": loss.item(),
        "val_loss": nn.functional.cross_entropy(outputs, val_targets).item(),
        "val_accuracy": (outputs.argmax(1) == val_targets).double().mean().item(),
    }
    return Step(dict(model.state_dict()), history, before)
