"""The run that `gradsync train` compares with one process, after it has trained.

The trainer trains a small model of float64 on drawn samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from support.probes.training import (
    Case,
    Classifier,
    draw_samples,
    orders_of_sampler,
    spied_training,
)

SHARE, BATCH_SIZE, EPOCHS = 13, 8, 3  # of each rank: a batch of 8 and one of 5 samples an epoch
HELD_OUT = 11  # validation samples for each rank: the shares need no padding
FIRST_SEED = 11  # of rank 0's weights; each rank begins with other weights


def case_for(world_size: int) -> Case:
    """Return the training run: one sample too few for equal shares, unless there is one rank."""
    rng = np.random.default_rng(2)
    known = draw_samples(rng, SHARE * world_size - (world_size > 1))
    seeds = [FIRST_SEED + rank for rank in range(world_size)]
    return Case((known, draw_samples(rng, HELD_OUT * world_size)), seeds, EPOCHS, BATCH_SIZE)


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
        What `spied_training` returns, and the `orders` of the submission's sampler.

    Raises:
        WrongReturn: the history is not a list of dicts of numbers.
    """
    case = case_for(info.world_size)
    model = Classifier(case.seeds[info.rank]).to(device)
    options = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "seed": 0}
    seen = spied_training(train, info, model, case.data, **options)
    place = info.rank, info.world_size, len(case.data[0][1]), 0
    return {**seen, "orders": orders_of_sampler(sampler, *place)}
