"""A recorded training run on ranks: its samples, the weights before each step, and its history."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
Weights = dict[str, Tensor]  # and buffers
LEARNING_RATE = 0.5
KNOWN_EPOCHS = 10  # the orders of a sampler are computed for these
ENTRY = ("epoch", "train_loss", "val_loss", "val_accuracy")  # the keys of a history's entry
TIME_TO_END = 60.0  # seconds; `train` must end with an error in this time if a rank is lost


class Classifier(nn.Module):
    """A model of float64 with a buffer; records its calls that train it, and its batch sizes."""

    shift: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        seed_weights(seed)
        self.layer = nn.Linear(4, 3).double()
        self.register_buffer("shift", torch.rand(4).double())
        self.sizes: Notes[int] = Notes()
        # Calls that compute gradients: the first number of each sample's inputs, and the weights.
        self.calls: Notes[tuple[list[float], Weights]] = Notes()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs - self.shift)
        if self.training:
            self.sizes.append(len(inputs))
        if outputs.requires_grad:
            self.calls.append((inputs[:, 0].tolist(), weights_of(self)))
        return outputs


def weights_of(model: nn.Module) -> Weights:
    """Return copies of the parameters and buffers, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


@dataclass(frozen=True)
class Case:
    """A training run on some ranks."""

    data: tuple[Samples, Samples]  # for training, and for validation
    seeds: Sequence[int]  # by rank, of the weights of its model
    epochs: int
    batch_size: int

    @property
    def ranks(self) -> range:
        return range(len(self.seeds))

    @property
    def share(self) -> int:
        """The training samples of a rank, with the padding."""
        return -(-len(self.data[0][1]) // len(self.seeds))

    @property
    def sizes(self) -> list[int]:
        """The sizes of a rank's batches in an epoch."""
        return [min(self.batch_size, self.share - k) for k in range(0, self.share, self.batch_size)]

    def before(self, rank: int) -> Weights:
        """Return the weights with which a rank calls `train`."""
        return weights_of(Classifier(self.seeds[rank]))


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
        training samples in the order in which the model was trained on them; `steps`: for each
        step, the indices of its samples and the weights before it; `sizes`, the sizes of the
        batches; `strange`, on how many validation samples it was trained; `lines`, what was printed
        to stdout.

    Raises:
        WrongReturn: the history is not a list of dicts of numbers.
    """
    train_set, val_set = (TensorDataset(*map(torch.from_numpy, part)) for part in data)
    # torch's warnings go to stderr
    with without(DDP), printed() as lines:
        history = train(info, model, train_set, val_set, lr=LEARNING_RATE, **options)
    numbers = {first: index for index, first in enumerate(data[0][0][:, 0].tolist())}
    others = set(data[1][0][:, 0].tolist()) - numbers.keys()
    firsts = [first for own, _ in model.calls for first in own]
    return {
        "weights": weights_of(model),
        "buffers": [name for name, _ in model.named_buffers()],
        "history": rows_of(history),
        "trained": [numbers[first] for first in firsts if first in numbers],
        "steps": _steps(model, numbers),
        "sizes": list(model.sizes),
        "strange": sum(first in others for first in firsts),
        "lines": lines,
    }


def _steps(model: Classifier, numbers: dict[float, int]) -> list[tuple[list[int], Weights]]:
    """Return the steps on training samples; calls with the same weights are one step."""
    steps: list[tuple[list[int], Weights]] = []
    for firsts, weights in model.calls:
        if not set(firsts) <= numbers.keys():
            continue  # validation samples
        indices = [numbers[first] for first in firsts]
        if steps and all(torch.equal(weights[name], old) for name, old in steps[-1][1].items()):
            steps[-1][0].extend(indices)  # a microbatch of the same step
        else:
            steps.append((indices, weights))
    return steps


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
