"""Trusted: run a task on its ranks, and return the observation."""

from __future__ import annotations

import math

from gradsync.ranks.deadlocks.detector import DeadlockDetector, LostRanksDetector
from gradsync.ranks.host.launchers.launcher import START_SECONDS, Launcher
from gradsync.ranks.host.rank_state import RankState
from gradsync.ranks.host.supervise import GRACE_SECONDS, Run
from gradsync.ranks.task import Task
from gradsync.records import Observation
from gradsync.temporary_folders import own_folder


def observe(task: Task, launcher: Launcher) -> Observation:
    """Run the task on its ranks and return the observation; leave no processes or files.

    Raises:
        LauncherError: the ranks could not be started, or were lost.
        TypeError: the function or an input can't be sent to a rank.
    """
    with (
        own_folder() as folder,  # after a kill, the warm process or the next grade removes it
        launcher.started(task.world_size, str(folder), (*task.roots, *task.readable)) as processes,
    ):
        detector = (LostRanksDetector if task.may_fail else DeadlockDetector)(task.world_size)
        states = [
            RankState(rank, lines, may_be_lost=rank in task.may_fail)
            for rank, lines in enumerate(processes.lines)
        ]
        run = Run(
            processes,
            states,
            detector,
            task.shows,
            task.timeout,
            grace=GRACE_SECONDS if task.debugger is None else math.inf,
            processor_seconds=task.processor_seconds,
        )
        _hand_out(task, run, states, str(folder))
        return run.observe()


def _hand_out(task: Task, run: Run, states: list[RankState], directory: str) -> None:
    """Send each rank its setup, then the task, which is pickled while the ranks meet."""
    for state in states:
        header = task.header(state.rank, directory, run.began, run.nonce)
        state.send("setup", header, b"", START_SECONDS)
    for state, payload in zip(states, task.payloads(), strict=True):
        state.send("task", {}, payload, START_SECONDS)
