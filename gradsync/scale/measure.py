"""Measure all-reduces over gloo, and the computation of a training step, on this machine."""

from __future__ import annotations

import statistics
import threading
import time
from datetime import timedelta

import torch
import torch.nn.functional as F
from torch import nn
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

from gradsync.scale.samples import Sample

SECONDS_PER_SIZE = 0.4  # of repetitions; large tensors take longer, but are repeated MIN_TIMES
MIN_TIMES, MAX_TIMES = 4, 60
TIMEOUT = timedelta(seconds=60)
FLOAT_BYTES = 4


def all_reduces(ranks: int, sizes: list[int]) -> list[Sample]:
    """Return the fastest time of all-reduces of these sizes in bytes, on the slowest rank.

    The ranks are threads of this process with a process group each: gloo exchanges their tensors
    over TCP as between processes, without the time that a start of processes takes. The fastest
    repetition is the one that other programs, and more ranks than cores, have delayed least.
    """
    store, times = HashStore(), [[0.0] * len(sizes) for _ in range(ranks)]
    counts = [MAX_TIMES] * len(sizes)

    def rank(number: int) -> None:
        group = ProcessGroupGloo(store, number, ranks, TIMEOUT)
        for index, size in enumerate(sizes):
            values = torch.zeros(max(1, size // FLOAT_BYTES))
            first = _one(group, values)  # opens connections
            if number == 0:
                fitting = int(SECONDS_PER_SIZE / max(first, 1e-6))
                counts[index] = min(MAX_TIMES, max(MIN_TIMES, fitting))
            barrier.wait()
            times[number][index] = min(_one(group, values) for _ in range(counts[index]))

    barrier = threading.Barrier(ranks)
    threads = [threading.Thread(target=rank, args=(number,)) for number in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    slowest = [max(column) for column in zip(*times, strict=True)]
    return [Sample(ranks, size, taken) for size, taken in zip(sizes, slowest, strict=True)]


def _one(group: ProcessGroupGloo, values: torch.Tensor) -> float:
    began = time.perf_counter()
    group.allreduce([values]).wait()  # type: ignore[attr-defined]
    return time.perf_counter() - began


def step_seconds(model: nn.Module, batch_size: int, times: int = 7) -> float:
    """Return the median time of forward and backward of a batch, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    images = torch.zeros(batch_size, 1, 28, 28)
    targets = torch.zeros(batch_size, dtype=torch.int64)
    taken = []
    for _ in range(times + 2):
        began = time.perf_counter()
        torch.autograd.backward(F.cross_entropy(model(images), targets))
        taken.append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    return statistics.median(taken[2:])
