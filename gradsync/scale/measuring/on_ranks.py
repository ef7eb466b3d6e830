"""Measurements that run on ranks: the seconds for collectives, and for steps of training.

They call the process group's backend directly. The engine reports every other call to its
supervisor and waits for an answer, which takes longer than a small all-reduce.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradsync.scale.measuring.training import Trained

FLOAT = 4  # bytes
ENOUGH = 8 * 2**20  # bytes of all repetitions of one size
FEWEST, MOST = 2, 30  # repetitions
WARMING = 100  # all-reduces before the measurement, because the first ones are slow
STEPS = 4


def all_reduces(sizes: Sequence[int]) -> list[list[float]]:
    """Return the seconds of several all-reduces of each size in bytes, without the first."""
    torch.set_num_threads(1)
    backend = _backend()
    for _ in range(WARMING):
        _sum(backend, torch.ones(1))
    taken = []
    for size in sizes:
        tensor = torch.ones(size // FLOAT)
        times = min(MOST, max(FEWEST, ENOUGH // size))
        seconds = [_seconds(partial(_sum, backend, tensor)) for _ in range(times + 1)]
        taken.append(seconds[1:])
    return taken


def steps(batches: Sequence[int]) -> list[list[float]]:
    """Return the seconds of several steps of data-parallel training, for each batch size."""
    torch.set_num_threads(1)
    backend = _backend()
    taken = []
    for batch in batches:
        trained = Trained(batch)
        step = partial(_step, backend, trained)
        taken.append([_seconds(step) for _ in range(STEPS + 1)][1:])
    return taken


def alone(batches: Sequence[int]) -> list[list[tuple[int, float, float, float]]]:
    """Return the fields of a `BatchTiming` for several steps of each batch size, on one rank."""
    torch.set_num_threads(1)
    taken = []
    for batch in batches:
        trained = Trained(batch)
        timings = [trained.timed() for _ in range(STEPS + 1)][1:]
        taken.append([(t.batch, t.forward, t.backward, t.update) for t in timings])
    return taken


def _backend() -> Any:
    group: Any = dist.group.WORLD
    return group._get_backend(torch.device("cpu"))


def _step(backend: Any, trained: Trained) -> None:
    trained.forward_and_backward()
    _sum(backend, torch.cat([gradient.flatten() for gradient in trained.gradients()]))
    trained.update()


def _sum(backend: Any, tensor: Tensor) -> None:
    backend.allreduce([tensor]).wait()


def _seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
