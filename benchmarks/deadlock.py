"""One rank skips an all-reduce: measure the time until the deadlock is explained."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks.figure import Figure, median_seconds, seconds, shown
from gradsync import RankFailure, run_ranks

RANKS = 4
GLOO_TIMEOUT = 15.0  # seconds; the default is 30 minutes


def figures() -> Iterator[Figure]:
    """Measure the time from the call to the explanation."""
    run_ranks(skip_one, 1)  # warm
    ours = median_seconds(_explained, times=9)
    theirs = seconds(_timed_out)
    yield Figure(
        "a deadlock: one rank skips an all-reduce",
        f"explained after {shown(ours)}",
        f"gloo's own timeout of {GLOO_TIMEOUT:.0f} s, spawned: {shown(theirs)}",
        theirs / ours,
        "within 1 s",
        ours <= 1,
    )


def skip_one(rank: int) -> None:
    for step in range(3):
        if (rank, step) != (1, 2):
            dist.all_reduce(torch.ones(10))


def _explained() -> None:
    try:
        run_ranks(skip_one, RANKS)
    except RankFailure as failure:
        if "Rank 1 returned without calling all_reduce #3" not in str(failure):
            raise
    else:
        raise AssertionError("The deadlock was not detected.")


def _timed_out() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):
        multiprocessing.spawn(_spawned, (str(Path(folder) / "store"),), nprocs=RANKS)


def _spawned(rank: int, path: str) -> None:
    store = dist.FileStore(path, RANKS)
    limit = timedelta(seconds=GLOO_TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=limit)
    skip_one(rank)
    if rank == 1:
        dist.barrier()  # a rank that ends would break the connections of the others
