"""Adam with its state sharded over the ranks by the solution, and unsharded."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.optim import Adam, Optimizer

from benchmarks.buckets import BATCH, WIDTHS, cnn
from benchmarks.figure import Figure, shown
from benchmarks.plain import on_plain_ranks, slowest, steps_in_turns

RANKS = 2


def figures() -> Iterator[Figure]:
    """Measure complete steps with averaged gradients, and the most bytes of state on a rank."""
    for size, width in WIDTHS.items():
        answers = on_plain_ranks(times_and_bytes, RANKS, width)
        ours, theirs = slowest([times for times, _ in answers])
        yield Figure(
            f"a step of Adam on {RANKS} ranks, {size} parameters",
            f"sharded: {shown(ours)}",
            f"unsharded: {shown(theirs)}",
            ours / theirs,
            "at most 1.3 times the unsharded",
            ours <= 1.3 * theirs,
        )
        sharded, unsharded, largest = (
            max(counts) for counts in zip(*(c for _, c in answers), strict=True)
        )
        yield Figure(
            f"bytes of Adam's state on a rank, {size} parameters",
            f"sharded: {sharded:,}",
            f"unsharded: {unsharded:,}",
            sharded / unsharded,
            f"1/{RANKS}, plus one parameter's {largest:,}",
            sharded <= math.ceil(unsharded / RANKS) + largest,
        )


def times_and_bytes(width: int) -> tuple[tuple[float, float], tuple[int, int, int]]:
    """Return this rank's median seconds for a step, and the bytes of its optimizer state.

    Both are pairs, for the sharded and the unsharded optimizer. The third number of bytes is the
    state of the parameter with the largest state.
    """
    from template_trainer import BucketedGradientAverager, ShardedOptimizer

    models = [cnn(width)]
    models.append(copy.deepcopy(models[0]))
    sharded = ShardedOptimizer(models[0].parameters(), Adam)
    unsharded = Adam(models[1].parameters())
    averagers = [BucketedGradientAverager(model) for model in models]
    inputs, targets = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))

    def step(which: int, optimizer: Optimizer) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(models[which](inputs), targets).backward()
        averagers[which].finish()
        optimizer.step()

    times = steps_in_turns(lambda: step(0, sharded), lambda: step(1, unsharded), steps=3, times=31)
    largest = max(_bytes(entry) for entry in unsharded.state.values())
    return times, (_state_bytes(sharded), _state_bytes(unsharded), largest)


def _state_bytes(optimizer: Optimizer) -> int:
    return sum(_bytes(entry) for entry in optimizer.state.values())


def _bytes(entry: dict[str, object]) -> int:
    return sum(value.nbytes for value in entry.values() if isinstance(value, torch.Tensor))
