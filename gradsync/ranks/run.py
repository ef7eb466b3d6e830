"""`run_ranks`: run a function on N ranks from a script, a notebook or a test."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from gradsync.ranks.failures.rank_failure import RankFailure
from gradsync.ranks.host.launchers.choice import LauncherName, get_launcher, lacking
from gradsync.ranks.host.launchers.launcher import LauncherError, rank_environ
from gradsync.ranks.host.supervise import observe
from gradsync.ranks.task import Task
from gradsync.records import Observation


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *,
    timeout: float = 60.0,
    process_group: bool = True,
    backend: str = "gloo",
    launcher: LauncherName | None = None,
    may_fail: Collection[int] = (),
    debug: int | None = None,
    **inputs: Any,
) -> Observation:
    """Run `function` on `world_size` ranks: processes that form a process group.

    This process prints the ranks' output.

    Args:
        function: called with `rank`, `world_size` (if it has such parameters) and the `inputs`; it
            returns numbers, strings, tensors, arrays, or containers of them. Closures are allowed.
        world_size: the number of ranks, 1 to 64.
        timeout: seconds after which running ranks are stopped; a deadlock is found immediately.
        process_group: start the default group before the function is called.
        backend: the group's backend. With "nccl", rank r uses GPU r as its current device.
        launcher: "fork" (Linux, fast), "spawn" (anywhere, slow) or "sandbox" (with bubblewrap).
        may_fail: ranks that may die or be late, but not raise; the others continue.
        debug: the rank on which `breakpoint()` and an uncaught exception open pdb in this terminal.
        **inputs: the function's other arguments, the same for every rank.

    Returns:
        The observation; as a sequence, it has the ranks' return values: `run_ranks(f, 4)[2]`.

    Raises:
        RankFailure: a rank raised, died, deadlocked or timed out; the message says which and where.
        LauncherError: the ranks could not be started, or were lost; or there are too few GPUs.
    """
    __tracebackhide__ = True  # pytest shows the test's line instead
    if (lack := lacking(backend, world_size, launcher)) is not None:
        raise LauncherError(lack)
    task = Task(
        function,
        world_size,
        inputs,
        process_group=process_group,
        backend=backend,
        timeout=timeout if debug is None else math.inf,
        may_fail=_collected(may_fail),
        debugger=None if debug is None else (debug, _terminal()),
        **_surroundings(launcher),
    )
    return _checked(observe(task, get_launcher(launcher)))


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


def _checked(observation: Observation) -> Observation:
    """Print the ranks' output; return the observation, or raise its failure."""
    __tracebackhide__ = True
    for rank, text in enumerate(observation.output):
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")
    if observation.failure is not None:
        raise RankFailure(observation)
    return observation
