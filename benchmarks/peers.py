"""What other tools print for four common mistakes, and other projects' suites on gradsync.

Flight recorder files and NCCL's RAS exist only with nccl, so they are not measured here.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks import others
from benchmarks.engines import TURNS, pytest_seconds
from benchmarks.figure import Figure, seconds, shown
from benchmarks.four_ranks.cases import CASES
from gradsync import RankFailure, run_ranks

RANKS = 3
TIMEOUT = 15.0  # seconds, of gloo; the default is 30 minutes
LETTERS = 300  # of each message that are printed
PORTED = 3  # times faster than with MultiProcessTestCase


def skip(rank: int) -> None:
    dist.all_reduce(torch.ones(4))
    if rank != 1:
        dist.all_reduce(torch.ones(4))


def reorder(rank: int) -> None:
    calls = [lambda: dist.all_reduce(torch.ones(4)), dist.barrier]
    for call in calls[:: -1 if rank == 1 else 1]:
        call()


def resize(rank: int) -> None:
    dist.all_reduce(torch.ones(4 + (rank == 1)))


def other_dtype(rank: int) -> None:
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32))


def figures() -> Iterator[Figure]:
    """Measure how long each tool takes for each mistake, and print its message."""
    run_ranks(skip, 1)  # warm
    for mistake in (skip, reorder, resize, other_dtype):
        ours = seconds(partial(_report, "gradsync", partial(_explain, mistake)))
        for name, level in (("gloo alone", "OFF"), ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "DETAIL")):
            theirs = seconds(partial(_report, name, partial(_spawn, mistake, level)))
            yield Figure(
                f"a mistake is reported: {mistake.__name__}",
                shown(ours),
                f"{name}: {shown(theirs)}",
                theirs / ours,
                "within 1 s",
                ours <= 1,
            )
    turns = [
        [pytest_seconds(way) for way in ("by_cases", "by_multi_process")] for _ in range(TURNS)
    ]
    ported, spawned = (statistics.median(times) for times in zip(*turns, strict=True))
    yield Figure(
        f"{len(CASES)} tests for MultiProcessTestCase, with gradsync.cases as the base class",
        shown(ported),
        f"unchanged: {shown(spawned)}",
        spawned / ported,
        f"{PORTED} times faster",
        spawned >= PORTED * ported,
    )
    yield from others.figures()


def _report(tool: str, run: Callable[[], str]) -> None:
    print(f"  {tool}: {' '.join(run().split())[:LETTERS]}", flush=True)


def _explain(mistake: Callable[[int], None]) -> str:
    try:
        run_ranks(mistake, RANKS)
    except RankFailure as failure:
        return failure.summary()
    raise AssertionError("The mistake was not found.")


def _spawn(mistake: Callable[[int], None], level: str) -> str:
    """Return the first error of plain torch, or say that there is none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        try:
            multiprocessing.spawn(_spawned, (str(path), mistake, level), nprocs=RANKS)
        except Exception as error:  # noqa: BLE001 - whatever the tool raises is its message
            return str(error).strip().splitlines()[-1]
    return "no error"


def _spawned(rank: int, path: str, mistake: Callable[[int], None], level: str) -> None:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    dist.set_debug_level_from_env()
    store = dist.FileStore(path, RANKS)
    limit = timedelta(seconds=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=limit)
    mistake(rank)
    time.sleep(2 * TIMEOUT)  # a rank that ends would break the connections of the others
