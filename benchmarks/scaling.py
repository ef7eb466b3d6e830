"""Training on 2 ranks compared with 1, one thread each, with the solution's averager of phase 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import nn

from benchmarks.figure import Figure, in_turns, seconds
from gradsync import run_ranks
from gradsync.course.catalogue import find_course
from gradsync.data import digits
from gradsync.model import SmallCNN

BATCH = 6144  # samples per rank; smaller batches spend too much time on communication
STEPS = 6


def figures() -> Iterator[Figure]:
    """Measure samples per second, with the same work for each rank."""
    data = digits().train.first(BATCH * STEPS)
    solution = str(find_course().root / "solutions" / "phase2")
    two, one = in_turns(lambda: _rate(2, data, solution), lambda: _rate(1, data, solution), times=9)
    yield Figure(
        "training on 2 ranks with `BucketedGradientAverager`, one thread each",
        f"2 ranks, {BATCH} each: {two:,.0f} samples/s",
        f"1 rank: {one:,.0f} samples/s",
        two / one,
        "1.7 times the samples/s",
        two >= 1.7 * one,
    )


def _rate(world_size: int, data: object, solution: str) -> float:
    spans = run_ranks(train_an_epoch, world_size, data=data, solution=solution)
    return world_size * BATCH * STEPS / max(spans)


def train_an_epoch(data: torch.utils.data.Dataset, solution: str) -> float:
    """Return the seconds for the second epoch over this rank's samples."""
    sys.path.insert(0, solution)
    from template_trainer import BucketedGradientAverager

    torch.manual_seed(0)
    model = SmallCNN()
    averager = BucketedGradientAverager(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)
    loss_fn = nn.CrossEntropyLoss()

    def train() -> None:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss_fn(model(inputs), targets).backward()
            averager.finish()
            optimizer.step()

    train()
    return seconds(train)
