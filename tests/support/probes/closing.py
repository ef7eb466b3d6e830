"""The run that `gradsync train` compares with one process, after it has trained.

The trainer trains a small model of float64 on drawn samples, which records the weights before each
step. The steps show which gradients were used, whatever the optimizer's momentum is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from support.probes.call_log import Notes
from support.probes.training import (
    Classifier,
    Samples,
    draw_samples,
    orders_of_sampler,
    spied_training,
)

SHARE, BATCH_SIZE, EPOCHS = 13, 8, 3  # of each rank: a batch of 8 and one of 5 samples an epoch
HELD_OUT = 11  # validation samples for each rank: the shares need no padding
FIRST_SEED = 11  # of rank 0's weights; each rank begins with other weights


class Stepping(Classifier):
    """A classifier that also records its weights at each call that computes gradients."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.calls: Notes[tuple[list[float], dict[str, Tensor]]] = Notes()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = super().forward(inputs)
        if outputs.requires_grad:
            self.calls.append((inputs[:, 0].tolist(), weights_of(self)))
        return outputs


def samples_for(world_size: int) -> tuple[Samples, Samples]:
    """Return the training samples, one too few for equal shares, and the validation samples."""
    rng = np.random.default_rng(2)
    known = draw_samples(rng, SHARE * world_size - (world_size > 1))
    return known, draw_samples(rng, HELD_OUT * world_size)


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return copies of the parameters and buffers, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def weights_before(rank: int) -> dict[str, Tensor]:
    """Return the weights with which a rank calls `train`."""
    return weights_of(Classifier(FIRST_SEED + rank))


def observed(
    train: Callable[..., Any], info: Any, device: torch.device, sampler: str
) -> dict[str, Any]:
    """Call `train` on this rank; every rank of the default group does.

    Args:
        train: the submission's function.
        info: this rank's `RankInfo`.
        device: the device of the model.
        sampler: the name of the submission's sampler class.

    Returns:
        What `spied_training` returns; the `orders` of the submission's sampler; and `steps`: for
        each step, the indices of its samples and the weights before it.

    Raises:
        WrongReturn: the history is not a list of dicts of numbers.
    """
    model, data = Stepping(FIRST_SEED + info.rank).to(device), samples_for(info.world_size)
    options = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "seed": 0}
    seen = spied_training(train, info, model, data, **options)
    known = data[0][0]
    numbers = {first: index for index, first in enumerate(known[:, 0].tolist())}
    steps: list[tuple[list[int], dict[str, Tensor]]] = []
    for firsts, weights in model.calls:
        if not set(firsts) <= numbers.keys():
            continue  # validation samples
        indices = [numbers[first] for first in firsts]
        if steps and all(torch.equal(weights[name], old) for name, old in steps[-1][1].items()):
            steps[-1][0].extend(indices)  # a microbatch of the same step
        else:
            steps.append((indices, weights))
    return {
        **seen,
        "weights": weights_of(model),
        "steps": steps,
        "orders": orders_of_sampler(sampler, info.rank, info.world_size, len(known), 0),
    }
