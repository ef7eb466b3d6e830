"""Training steps with a learner's averager and with torch's DDP, for `gradsync scale --mine`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

cloudpickle.register_pickle_by_value(sys.modules[__name__])

STEPS, BATCH = 12, 256  # on each rank
WIDTH = 512  # 930,000 parameters: four buckets
CAP = 1.0  # MiB, the size of a bucket in the learner's averager and in DDP


def with_ddp() -> None:
    """Train with DDP."""
    model = DistributedDataParallel(_model(), bucket_cap_mb=CAP)
    _steps(model, lambda: None)


def with_average_gradients(trainer: Any) -> None:
    """Train with phase 1's function, which is called after backward."""
    model = _model()
    _steps(model, lambda: trainer.average_gradients(model))


def with_buckets(trainer: Any) -> None:
    """Train with phase 2's buckets, which are sent during backward."""
    model = _model()
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=CAP)
    _steps(model, averager.finish)


REFERENCE = "DistributedDataParallel", with_ddp
AVERAGERS = {  # by phase: the name in the table, and the function to run on the ranks
    "phase1": ("average_gradients", with_average_gradients),
    "phase2": ("BucketedGradientAverager", with_buckets),
}


def _model() -> nn.Module:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers: list[nn.Module] = []
    for width in (28 * 28, WIDTH, WIDTH):
        layers += [nn.Linear(width, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 10))


def _steps(model: nn.Module, average: Callable[[], object]) -> None:
    """Take steps of SGD, with a barrier before each and after the last."""
    inputs, targets = torch.randn(BATCH, 28 * 28), torch.randint(10, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dist.barrier()
    for _ in range(STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        average()
        optimizer.step()
        dist.barrier()
