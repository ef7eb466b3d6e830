"""A recorded training run on ranks, and the training of one process on the same samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from support.probes.call_log import Notes
from support.probes.printing import printed
from support.probes.ready_made import DDP, without
from support.probes.returned import WrongReturn, described, items_of, numbers_of
from support.probes.seeding import seed_weights

Samples = tuple[NDArray[Any], NDArray[Any]]  # inputs (sample, ...) and targets (sample,)
Steps = Sequence[Sequence[int]]  # in an epoch: the indices of each step's samples
LEARNING_RATE = 0.5
KNOWN_EPOCHS = 10  # the orders of a sampler are computed for these
ENTRY = ("epoch", "train_loss", "val_loss", "val_accuracy")  # the keys of a history's entry
TIME_TO_END = 60.0  # seconds; `train` must end with an error in this time if a rank is lost


class Classifier(nn.Module):
    """A model of float64 with a buffer; records its training samples, and its batch sizes."""

    shift: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        seed_weights(seed)
        self.layer = nn.Linear(4, 3).double()
        self.register_buffer("shift", torch.rand(4).double())
        self.sizes: Notes[int] = Notes()
        self.trained: Notes[float] = Notes()  # the first number of each sample's inputs

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs - self.shift)
        if self.training:
            self.sizes.append(len(inputs))
        if outputs.requires_grad:
            self.trained += inputs[:, 0].tolist()
        return outputs


def draw_samples(rng: np.random.Generator, count: int) -> Samples:
    """Return samples with 4 numbers each, of 3 classes."""
    return rng.standard_normal((count, 4)), rng.integers(0, 3, count)


def spied_training(
    train: Callable[..., Any],
    info: Any,
    model: Classifier,
    data: tuple[Samples, Samples],
    **options: Any,
) -> dict[str, Any]:
    """Call a submission's `train` and report the result.

    Returns:
        `weights`, with buffers, and the names of the `buffers`; the `history`; `trained`, the
        training samples in the order in which the model was trained on them; `sizes`, the sizes of
        their batches; `strange`, on how many validation samples it was trained; `lines`, what was
        printed to stdout.
    """
    train_set, val_set = (TensorDataset(*map(torch.from_numpy, part)) for part in data)
    # torch's warnings go to stderr
    with without(DDP), printed() as lines:
        history = train(info, model, train_set, val_set, lr=LEARNING_RATE, **options)
    numbers = {first: index for index, first in enumerate(data[0][0][:, 0].tolist())}
    others = set(data[1][0][:, 0].tolist()) - numbers.keys()
    return {
        "weights": {name: tensor.detach() for name, tensor in model.state_dict().items()},
        "buffers": [name for name, _ in model.named_buffers()],
        "history": rows_of(history),
        "trained": [numbers[first] for first in model.trained if first in numbers],
        "sizes": list(model.sizes),
        "strange": sum(first in others for first in model.trained),
        "lines": lines,
    }


def orders_of_sampler(
    name: str, rank: int, world_size: int, samples: int, seed: int
) -> list[list[int]]:
    """Return the orders of the submission's sampler of this name in its first epochs.

    No training run here has more epochs. Without such a sampler, the list is empty.
    """
    sampler_class: Any = getattr(sys.modules.get("template_data_loader"), name, None)
    orders: list[list[int]] = []
    with suppress(Exception):  # other tests judge the sampler, and a training run need not use it
        for epoch in range(KNOWN_EPOCHS):
            sampler = sampler_class(range(samples), world_size, rank, seed=seed)
            sampler.set_epoch(epoch)
            orders.append([int(index) for index in items_of(sampler, "the sampler")])
    return orders


def rows_of(history: Any) -> list[dict[str, float]]:
    """Return the numbers of each entry of a history; None has no entries.

    Raises:
        WrongReturn: it is not a list of dicts of numbers.
    """
    if history is None:
        return []
    if not isinstance(history, (list, tuple)):
        raise WrongReturn(
            f"train returns {described(history)}. It must return a list with a dict for each epoch."
        )
    return [numbers_of(row, ENTRY, "an entry of the history that train returns") for row in history]


class Trained(NamedTuple):
    """The result of a training run in one process."""

    weights: dict[str, Tensor]  # and buffers
    history: list[dict[str, Any]]  # its numbers are the means of the values in `samples`
    losses: list[list[float]]  # for each epoch, the loss of each step
    loss_before: float  # over the validation samples


def one_process(
    data: tuple[Samples, Samples],
    epochs: Sequence[Steps],
    seed: int,
    *,
    lr: float = LEARNING_RATE,
    **settings: Any,
) -> Trained:
    """Train the classifier of this seed over these steps, with SGD and these settings."""
    model, (train, val) = Classifier(seed), data
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **settings)
    val_inputs, val_targets = map(torch.from_numpy, val)
    history, losses = [], []
    before = nn.functional.cross_entropy(model(val_inputs), val_targets).item()
    for epoch, steps in enumerate(epochs):
        by_step = [_step(model, optimizer, train, indices) for indices in steps]
        losses.append([float(own.mean()) for own in by_step])
        with torch.no_grad():
            outputs = model(val_inputs)
        samples = {
            "val_loss": nn.functional.cross_entropy(outputs, val_targets, reduction="none").numpy(),
            "val_accuracy": (outputs.argmax(1) == val_targets).double().numpy(),
        }
        row = {
            "epoch": epoch,
            "train_loss": float(np.concatenate(by_step).mean()),
            **{name: float(values.mean()) for name, values in samples.items()},
            "samples": {
                **{name: values.tolist() for name, values in samples.items()},
                "train_loss": [own.tolist() for own in by_step],
            },
        }
        history.append(row)
    return Trained(dict(model.state_dict()), history, losses, before)


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, samples: Samples, indices: Sequence[int]
) -> NDArray[Any]:
    """Take one process's step on these samples; return the loss of each one before the step."""
    inputs, targets = (torch.from_numpy(part[np.asarray(indices)]) for part in samples)
    optimizer.zero_grad()
    losses = nn.functional.cross_entropy(model(inputs), targets, reduction="none")
    losses.mean().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return losses.detach().numpy()


def steps_of(trained: Sequence[Sequence[int]], *, share: int, batch_size: int) -> list[Steps]:
    """Return the steps of all ranks together, by epoch; each rank trained on `share` an epoch."""
    return [
        [
            [
                index
                for own in trained
                for index in own[begin : min(begin + batch_size, start + share)]
            ]
            for begin in range(start, start + share, batch_size)
        ]
        for start in range(0, len(trained[0]), share)
    ]
