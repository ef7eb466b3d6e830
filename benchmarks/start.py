"""Start 4 ranks, all-reduce, end: `run_ranks` and torch.multiprocessing.spawn."""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks.figure import Figure, in_turns, seconds, shown
from gradsync import run_ranks

RANKS = 4
MIB = 2**20


def figures() -> Iterator[Figure]:
    """Measure the time and the memory of a start."""
    run_ranks(add_up, RANKS)  # warm
    ours, theirs = in_turns(_run_ranks_median, _spawn, times=3)
    yield Figure(
        f"start {RANKS} ranks, all-reduce, end",
        f"run_ranks, warm: {shown(ours)}",
        f"torch.multiprocessing.spawn: {shown(theirs)}",
        theirs / ours,
        "25 times faster",
        theirs >= 25 * ours,
    )
    pss = max(run_ranks(own_memory, RANKS))
    yield Figure(
        "memory of a rank (PSS)",
        f"{pss / MIB:.1f} MiB",
        f"a spawned rank: {max(run_ranks(own_memory, RANKS, launcher='spawn')) / MIB:.1f} MiB",
        None,
        "at most 60 MiB",
        pss <= 60 * MIB,
    )


def add_up() -> float:
    total = torch.ones(1000)
    dist.all_reduce(total)
    return float(total[0])


def own_memory() -> int:
    """Return this rank's proportional set size in bytes while all ranks are running."""
    add_up()
    dist.barrier()
    pss = re.search(r"^Pss:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.M)
    dist.barrier()
    return int(pss[1]) * 1024 if pss else 0


def _run_ranks_median() -> float:
    return statistics.median(seconds(lambda: run_ranks(add_up, RANKS)) for _ in range(5))


def _spawn() -> float:
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        return seconds(lambda: multiprocessing.spawn(_spawned, (store,), nprocs=RANKS))


def _spawned(rank: int, path: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(path, RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    add_up()
    dist.destroy_process_group()
