"""The solution's ring all-reduce, built from sends and receives, and gloo's all-reduce."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks.figure import Figure, shown
from benchmarks.plain import on_plain_ranks, slowest, steps_in_turns

RANKS = 4
SIZES = (4, 16)  # MiB of a tensor
MIB = 2**20


def figures() -> Iterator[Figure]:
    """Measure tensors that are large enough for a ring to make sense."""
    for mib in SIZES:
        ours, theirs = slowest(on_plain_ranks(sum_times, RANKS, mib))
        yield Figure(
            f"the sum of {mib} MiB over {RANKS} ranks",
            f"ring_all_reduce: {shown(ours)}",
            f"gloo's all_reduce: {shown(theirs)}",
            ours / theirs,
            "at most 2 times gloo's",
            ours <= 2 * theirs,
        )


def sum_times(mib: int) -> tuple[float, float]:
    """Return this rank's median seconds for a sum, ours and gloo's."""
    from template_trainer import ring_all_reduce

    tensor = torch.zeros(mib * MIB // torch.float32.itemsize)
    return steps_in_turns(
        lambda: ring_all_reduce(tensor), lambda: dist.all_reduce(tensor), steps=3, times=31
    )
