"""`run_ranks`: run a function on N ranks from a script, a notebook or a test."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from gradsync.ranks.crew import rank_environ
from gradsync.ranks.launchers import LauncherName, get_launcher
from gradsync.ranks.observe import observe
from gradsync.ranks.task import Task
from gradsync.records import Observation


class RankFailure(Exception):  # noqa: N818 - it is about a rank's failure, not an error of ours
    """A run of ranks failed; `observation` has all that was observed."""

    def __init__(self, observation: Observation) -> None:
        super().__init__(observation)
        self.observation = observation

    def __str__(self) -> str:
        failure = self.observation.failure
        if failure is None:
            return "no failure"
        lines = [failure.diagnosis.explanation]
        if failure.traceback:
            lines += ["", *("  " + line for line in failure.traceback.splitlines())]
        return "\n".join(lines)


def run_ranks(
    function: Callable[..., Any],
    world_size: int,
    *,
    timeout: float = 60.0,
    process_group: bool = True,
    launcher: LauncherName | None = None,
    casualties: Collection[int] = (),
    **inputs: Any,
) -> Observation:
    """Run `function` on `world_size` ranks, each a process with a gloo group around it.

    Its parameters are filled by name: `rank`, `world_size` and the `inputs` (arrays, tensors,
    anything that cloudpickle can pickle). It may be a closure, a lambda or a function from a
    notebook. The ranks' output is printed here, with the rank before each line. Their temporary
    files are removed.

    Args:
        function: the function that each rank runs; it returns numbers, strings, tensors, arrays,
            or lists, tuples, sets and dicts of them.
        world_size: the number of ranks, 1 to 64.
        timeout: seconds after which ranks that still run are ended; a deadlock is found at once.
        process_group: start the default group before the function is called.
        launcher: "fork" (Linux, fast), "spawn" (anywhere, slow) or "sandbox" (with bubblewrap).
        casualties: ranks that may die or be late; the others continue, and no deadlock is proved.
        **inputs: the function's other arguments, the same for every rank.

    Returns:
        The observation; as a sequence, it has the ranks' return values: `run_ranks(f, 4)[2]`.

    Raises:
        RankFailure: a rank raised, died, deadlocked or timed out; the message says which and where.
        LauncherError: the ranks could not be started, or were lost.
    """
    task = Task(
        function=function,
        world_size=world_size,
        inputs=inputs,
        path=tuple(entry or str(Path.cwd()) for entry in sys.path),
        cwd=None if launcher == "sandbox" else Path.cwd(),
        environ=rank_environ(bare=launcher == "sandbox"),
        process_group=process_group,
        timeout=timeout,
        casualties=tuple(casualties),
    )
    observation = observe(task, get_launcher(launcher))
    _print_output(observation)
    if observation.failure is not None:
        raise RankFailure(observation)
    return observation


def _print_output(observation: Observation) -> None:
    for rank, text in enumerate(observation.output):
        for line in text.splitlines():
            print(f"[rank {rank}] {line}")
