"""Ranks as plain processes, without gradsync's recording of collectives.

Recording would slow down only the solutions' collectives, not those that torch calls in C++.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

from benchmarks.figure import in_turns, seconds
from gradsync.course.catalogue import find_course


def on_plain_ranks(
    function: Callable[..., Any], world_size: int, *arguments: object, phase: int = 2
) -> list[Any]:
    """Call `function(*arguments)` on each rank; return the results, converted to JSON and back.

    The ranks are spawned, with one thread each and gloo over the loopback interface, and can
    import the solutions and the given files of a phase by their names.
    """
    with tempfile.TemporaryDirectory() as folder:
        spawned = (folder, world_size, phase, function, arguments)
        multiprocessing.spawn(_rank, spawned, nprocs=world_size)
        return [json.loads(_answer(folder, rank).read_text()) for rank in range(world_size)]


def steps_in_turns(
    one: Callable[[], object], other: Callable[[], object], steps: int, times: int
) -> tuple[float, float]:
    """Return both medians of this rank's seconds for a step; every rank must call this.

    A turn is a barrier and several steps, because ranks leave gloo's barrier at different times.
    """

    def turn(step: Callable[[], object]) -> float:
        dist.barrier()
        return seconds(lambda: [step() for _ in range(steps)]) / steps

    turn(one), turn(other)  # warm
    return in_turns(lambda: turn(one), lambda: turn(other), times)


def slowest(medians: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the largest of the ranks' medians, for each of the two measurements."""
    return max(one for one, _ in medians), max(other for _, other in medians)


def _rank(
    rank: int,
    folder: str,
    world_size: int,
    phase: int,
    function: Callable[..., Any],
    arguments: tuple[object, ...],
) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    root = find_course().root
    sys.path[:0] = [str(root / "solutions" / f"phase{phase}"), str(root / f"phase{phase}")]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = dist.FileStore(str(Path(folder) / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    _answer(folder, rank).write_text(json.dumps(function(*arguments)))
    dist.barrier()  # a rank that ends early breaks the connections of slower ranks
    os._exit(0)  # a gloo group's destructor sometimes aborts


def _answer(folder: str, rank: int) -> Path:
    return Path(folder) / f"{rank}.json"
