"""An epoch of training with the solution of phase 2, and with torch's DDP and FSDP2."""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.utils.data import Subset

from benchmarks.figure import Figure, shown
from benchmarks.plain import on_plain_ranks, slowest, steps_in_turns
from gradsync.data import digits
from gradsync.model import SmallCNN

RANKS = 2
SAMPLES = 2_000
BATCH, MICROBATCHES, LEARNING_RATE = 50, 2, 0.1  # per rank
WAYS = {"ddp": "DistributedDataParallel", "fsdp": "FSDP2's fully_shard"}


def figures() -> Iterator[Figure]:
    """Measure an epoch on the same samples, with the same number of microbatches per batch."""
    for way, name in WAYS.items():
        ours, theirs = slowest(on_plain_ranks(epoch_times, RANKS, way))
        yield Figure(
            f"an epoch on {RANKS} ranks, as production.py --with {way}",
            f"the solution's train: {shown(ours)}",
            f"{name}: {shown(theirs)}",
            ours / theirs,
            "at most 1.25 times the time",
            ours <= 1.25 * theirs,
        )


def epoch_times(way: str) -> tuple[float, float]:
    """Return this rank's median seconds for an epoch, the solution's and production's."""
    import production

    import template_trainer

    known = digits(download=False).train.first(SAMPLES)
    model, few = SmallCNN(), Subset(known, range(RANKS))
    info = SimpleNamespace(rank=dist.get_rank(), world_size=RANKS, local_rank=dist.get_rank())
    options = argparse.Namespace(
        batch_size=BATCH, microbatches=MICROBATCHES, lr=LEARNING_RATE, compile=False
    )
    ready = production.WAYS[way](SmallCNN(), known, options)

    def ours() -> None:
        settings = {"batch_size": BATCH, "lr": LEARNING_RATE, "accumulation_steps": MICROBATCHES}
        with redirect_stdout(io.StringIO()):
            template_trainer.train(info, model, known, few, epochs=1, **settings)

    def theirs() -> None:
        with ready.epoch():
            losses = [ready.step(*batch) for batch in ready.loader(0)]
        torch.stack(losses).mean().item()

    return steps_in_turns(ours, theirs, steps=1, times=7)
