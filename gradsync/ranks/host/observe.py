"""Trusted: run a task on its ranks, and return the observation."""

from __future__ import annotations

from gradsync.ranks.deadlocks.detector import Standoff
from gradsync.ranks.deadlocks.lost_ranks import LenientStandoff
from gradsync.ranks.host.launcher import Launcher
from gradsync.ranks.host.rank_state import Member
from gradsync.ranks.host.supervise import START_SECONDS, Run
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
        launcher.crew(task.world_size, str(folder), (*task.roots, *task.readable)) as crew,
    ):
        standoff = (LenientStandoff if task.casualties else Standoff)(task.world_size)
        members = [
            Member(rank, lines, may_be_lost=rank in task.casualties)
            for rank, lines in enumerate(crew.lines)
        ]
        run = Run(
            crew,
            members,
            standoff,
            task.shows,
            task.timeout,
            processor_seconds=task.processor_seconds,
        )
        _hand_out(task, run, members, str(folder))
        return run.observe()


def _hand_out(task: Task, run: Run, members: list[Member], directory: str) -> None:
    """Send each rank its place, then the task, which is pickled while the ranks meet."""
    for member in members:
        header = task.header(member.rank, directory, run.began, run.nonce)
        member.tell("place", header, b"", START_SECONDS)
    for member, payload in zip(members, task.payloads(), strict=True):
        member.tell("task", {}, payload, START_SECONDS)
