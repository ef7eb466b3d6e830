"""A training on ranks that is spied on, and what one process makes of the same samples."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

Samples = tuple[NDArray[Any], NDArray[Any]]  # inputs (sample, ...) and targets (sample,)
Steps = Sequence[Sequence[int]]  # of an epoch: the indices of each step's samples
LEARNING_RATE = 0.5


class Classifier(nn.Module):
    """Of float64, with a buffer; notes how many samples it is trained on at once."""

    shift: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(4, 3).double()
        self.register_buffer("shift", torch.rand(4).double())
        self.sizes: list[int] = []

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.sizes.append(len(inputs))
        outputs: Tensor = self.layer(inputs - self.shift)
        return outputs


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
        `weights`, buffers too, and which of them are `buffers`; the `history`; `drawn`, the
        training samples in the order in which they were asked for; `lines`, what it printed to
        stdout.
    """
    train_set, val_set = (Numbered(*part) for part in data)
    with contextlib.redirect_stdout(io.StringIO()) as said:  # torch's warnings go to stderr
        history = train(info, model, train_set, val_set, lr=LEARNING_RATE, **options)
    return {
        "weights": {name: tensor.detach() for name, tensor in model.state_dict().items()},
        "buffers": [name for name, _ in model.named_buffers()],
        "history": [{key: float(value) for key, value in dict(row).items()} for row in history],
        "drawn": train_set.drawn,
        "lines": [line for line in said.getvalue().splitlines() if line.strip()],
    }


class Trained(NamedTuple):
    """What a training in one process comes to."""

    weights: dict[str, Tensor]  # and buffers
    history: list[dict[str, float]]
    losses: list[list[float]]  # by epoch, of each step
    loss_before: float  # over the validation samples


def one_process(
    data: tuple[Samples, Samples],
    epochs: Sequence[Steps],
    seed: int,
    *,
    lr: float = LEARNING_RATE,
    **settings: Any,
) -> Trained:
    """Train the classifier of this seed over these steps, by SGD with these settings."""
    model, (train, val) = Classifier(seed), data
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **settings)
    val_inputs, val_targets = map(torch.from_numpy, val)
    history, losses = [], []
    before = nn.functional.cross_entropy(model(val_inputs), val_targets).item()
    for epoch, steps in enumerate(epochs):
        losses.append([_step(model, optimizer, train, indices) for indices in steps])
        sizes = [len(indices) for indices in steps]
        with torch.no_grad():
            outputs = model(val_inputs)
        row = {
            "epoch": epoch,
            "train_loss": float(np.average(losses[-1], weights=sizes)),
            "val_loss": nn.functional.cross_entropy(outputs, val_targets).item(),
            "val_accuracy": (outputs.argmax(1) == val_targets).double().mean().item(),
        }
        history.append(row)
    return Trained(dict(model.state_dict()), history, losses, before)


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, samples: Samples, indices: Sequence[int]
) -> float:
    """Take one process's step on some of the samples; return their mean loss before it."""
    inputs, targets = (torch.from_numpy(part[np.asarray(indices)]) for part in samples)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def steps_of(drawn: Sequence[Sequence[int]], *, share: int, batch_size: int) -> list[Steps]:
    """Return the steps of all ranks together, by epoch, given what each drew: `share` an epoch."""
    return [
        [
            [
                index
                for own in drawn
                for index in own[begin : min(begin + batch_size, start + share)]
            ]
            for begin in range(start, start + share, batch_size)
        ]
        for start in range(0, len(drawn[0]), share)
    ]
