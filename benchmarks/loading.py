"""Batches of MNIST from the in-memory dataset, and from torchvision's, sample by sample."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.figure import Figure, in_turns, seconds
from gradsync.data import digits, mnist_root

BATCH = 64
BATCHES = 100


def figures() -> Iterator[Figure]:
    """Measure samples per second through a plain DataLoader, one thread."""
    torch.set_num_threads(1)
    data = digits()
    if not data.is_mnist:
        print(f"MNIST is not available, so loading it is not measured: {data.source}")
        return
    tv = _torchvision()
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


def _torchvision() -> Any:
    """Return torchvision; if it is of another build than torch, its operators do not load."""
    if version("torch").partition("+")[2] != version("torchvision").partition("+")[2]:
        for name in ("nms", "qnms"):  # the import needs only their schemas
            schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
    return import_module("torchvision")


def _rate(dataset: Dataset[tuple[torch.Tensor, int]]) -> float:
    loader = DataLoader(dataset, batch_size=BATCH, shuffle=True)
    batches = islice(loader, BATCHES)
    return BATCH * BATCHES / seconds(lambda: [None for _ in batches])
