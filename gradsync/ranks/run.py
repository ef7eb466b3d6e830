"""`run_ranks`: run a function on N ranks from a script, a notebook or a test."""

from __future__ import annotations

import math
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from gradsync.ranks.failures.rank_failure import RankFailure, RankWarning
from gradsync.ranks.host.launchers.choice import LauncherName, get_launcher, lacking
from gradsync.ranks.host.launchers.launcher import LauncherError, rank_environ
from gradsync.ranks.host.ports import free_port
from gradsync.ranks.host.supervise import observe
from gradsync.ranks.protocol.faults import Fault
from gradsync.ranks.protocol.scripts import run_script
from gradsync.ranks.schedules import explore
from gradsync.ranks.task import Task
from gradsync.records import Failure, Observation


def run_ranks(
    function: Callable[..., Any] | None = None,
    world_size: int = 0,
    *,
    script: str | Path | None = None,
    args: Sequence[str] = (),
    timeout: float = 60.0,
    process_group: bool = True,
    backend: str = "gloo",
    launcher: LauncherName | None = None,
    nodes: int = 1,
    mesh: Mapping[str, int] | None = None,
    random_seed: str | None = None,
    strict: bool = False,
    may_fail: Collection[int] = (),
    faults: Sequence[Fault] = (),
    schedules: int = 0,
    schedule: int | None = None,
    debug: int | None = None,
    **inputs: Any,
) -> Observation:
    """Run `function`, or a script, on `world_size` ranks: processes that form a process group.

    This process prints the ranks' output. It warns (`RankWarning`) of calls with an uncertain
    outcome: a handle that is never waited for, a tensor that is changed while it is in use, a
    tensor with another shape or layout than on other ranks.

    Args:
        function: called with `rank`, `world_size`, `mesh` (if it has such parameters) and the
            `inputs`; it returns numbers, strings, tensors, arrays, or containers of them. Closures
            are allowed.
        world_size: the number of ranks, 1 to 256.
        script: a program to run as torchrun does, instead of a function.
        args: the script's arguments.
        timeout: seconds after which running ranks are stopped; a deadlock is found immediately.
        process_group: start the default group before the function is called.
        backend: the group's backend. With "nccl", rank r uses GPU r as its current device.
        launcher: "fork" (Linux, fast), "hashes" (the same, with other hashes of strings on each
            rank), "spawn" (anywhere, slow) or "sandbox" (with bubblewrap).
        nodes: set the variables of torchrun, such as LOCAL_RANK, as on so many machines.
        mesh: the names and sizes of a device mesh, such as {"dp": 2, "tp": 4}.
        random_seed: a seed of the ranks' global random states, which differ from rank to rank.
        strict: raise RankFailure instead of giving a warning.
        may_fail: ranks that may die or be late, but not raise; the others continue.
        faults: faults to cause: `kill(rank=1, at="all_reduce #3")`, `slow(rank=2, seconds=1)`.
        schedules: run so many times, each time with other ranks late at their calls, and report
            the first schedule that fails or has another result.
        schedule: repeat one of these schedules.
        debug: the rank on which `breakpoint()` and an uncaught exception open pdb in this terminal.
        **inputs: the function's other arguments, the same for every rank.

    Returns:
        The observation, a sequence of the ranks' return values, such as `run_ranks(f, 4)[2]`.

    Raises:
        RankFailure: a rank raised, died, deadlocked or timed out; the message says which and where.
        LauncherError: the ranks could not be started, or were lost; or there are too few GPUs.
    """
    __tracebackhide__ = True  # pytest shows the test's line instead
    if (function is None) == (script is None):
        raise TypeError("pass either a function or `script=`")
    if script is not None and inputs:
        raise TypeError(f"a script takes `args=`, not the input {next(iter(inputs))!r}")
    if function is None:
        function, process_group = run_script, False
        inputs = {"script": str(Path(str(script)).resolve()), "args": list(map(str, args))}
    if (lack := lacking(backend, world_size, launcher)) is not None:
        raise LauncherError(lack)
    killed = {fault.rank for fault in faults if fault.kind == "kill"}
    task = Task(
        function,
        world_size,
        inputs,
        process_group=process_group,
        backend=backend,
        timeout=timeout if debug is None else math.inf,
        may_fail=tuple({*_collected(may_fail), *killed}),
        debugger=None if debug is None else (debug, _terminal()),
        seed=str(random_seed) if random_seed is not None else secrets.token_hex(8),
        nodes=nodes,
        mesh=mesh,
        faults=tuple(faults),
        schedule=schedule,
        **_surroundings(launcher),
    )

    def run(schedule: int | None) -> Observation:
        once = replace(task, port=free_port(), schedule=schedule)
        return _strict(observe(once, get_launcher(launcher)), strict=strict)

    seen = explore(run, schedules) if schedules else run(schedule)
    _print(seen)
    if seen.failure is not None:
        raise RankFailure(seen)
    for warning in seen.warnings:
        warnings.warn(RankWarning(warning.explanation), stacklevel=2)
    return seen


def _collected(may_fail: Collection[int]) -> tuple[int, ...]:
    if not isinstance(may_fail, Collection):
        raise TypeError(f"may_fail must be a list of ranks, such as [1], got {may_fail!r}")
    return tuple(may_fail)


def _surroundings(launcher: LauncherName | None) -> dict[str, Any]:
    """Return the settings that ranks share with this process, as far as a sandbox allows it."""
    in_sandbox = launcher == "sandbox"
    return {
        "path": tuple(entry or str(Path.cwd()) for entry in sys.path),
        "cwd": None if in_sandbox else Path.cwd(),
        "environ": rank_environ(bare=in_sandbox),
        "authkey": None if in_sandbox else bytes(current_process().authkey),
    }


def _terminal() -> str:
    """Return the path of this process's terminal.

    Raises:
        RuntimeError: it has none.
    """
    try:
        return os.ttyname(0)
    except OSError:
        raise RuntimeError("A debugger needs a terminal, but stdin is not one.") from None


def _strict(seen: Observation, *, strict: bool) -> Observation:
    """Turn the first warning into a failure, if a run is `strict`."""
    if not (strict and seen.warnings):
        return seen
    return replace(seen, failure=Failure("failed", seen.warnings[0]))


def _print(observation: Observation) -> None:
    """Print the ranks' output."""
    for rank, text in enumerate(observation.output):
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")
