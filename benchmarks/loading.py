"""Batches of MNIST from the in-memory dataset, and from torchvision's, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.figure import Figure, in_turns, seconds
from gradsync.data import digits, import_torchvision, mnist_root

BATCH = 64
BATCHES = 100


def figures() -> Iterator[Figure]:
    """Measure samples per second through a plain DataLoader, one thread."""
    torch.set_num_threads(1)
    data = digits()
    if not data.is_mnist:
        print(f"MNIST is not available, so loading it is not measured: {data.source}")
        return
    tv = import_torchvision()
    transform = tv.transforms.Compose(
        [tv.transforms.ToTensor(), tv.transforms.Normalize((0.1307,), (0.3081,))]
    )
    theirs = tv.datasets.MNIST(str(mnist_root()), train=True, transform=transform)
    one, other = in_turns(lambda: _rate(data.train), lambda: _rate(theirs), times=7)
    yield Figure(
        "loading batches of MNIST",
        f"in memory: {one:,.0f} samples/s",
        f"torchvision, ToTensor + Normalize: {other:,.0f} samples/s",
        one / other,
        "20 times the samples/s",
        one >= 20 * other,
    )


def _rate(dataset: Dataset[tuple[torch.Tensor, int]]) -> float:
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    batches = islice(loader, BATCHES)
    return BATCH * BATCHES / seconds(lambda: [None for _ in batches])
