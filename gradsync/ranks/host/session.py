"""Trusted: persistent ranks for a notebook; each cell is one run on the same processes.

When a cell can't continue, its ranks keep running: their connections are cut and their main
threads interrupted, so their variables survive. The next cell starts a new process group. A rank is
replaced only if it can't be interrupted.
"""

from __future__ import annotations

import math
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import current_process
from pathlib import Path
from typing import Any

from gradsync.ranks.deadlocks.detector import DeadlockDetector
from gradsync.ranks.failures.rank_failure import RankFailure
from gradsync.ranks.host.launchers.choice import get_launcher
from gradsync.ranks.host.launchers.fork import ForkLauncher
from gradsync.ranks.host.launchers.launcher import START_SECONDS, LauncherError, rank_environ
from gradsync.ranks.host.rank_state import ResidentRank
from gradsync.ranks.host.supervise import Run
from gradsync.ranks.protocol import events, pickles
from gradsync.ranks.protocol.user_files import is_users
from gradsync.ranks.task import check_world_size
from gradsync.records import Failure, Observation
from gradsync.temporary_folders import own_folder

BACKEND = "module://gradsync.ranks.inside.figures"  # of matplotlib
END_SECONDS = 3.0  # for ranks to leave a cell that was stopped, even on a busy machine
MEETINGS = 3  # attempts to start a process group before a cell
SEND_SECONDS = 1.0  # for a rank to receive a message


@dataclass(frozen=True, slots=True)
class CellOutcome:
    """The outcome of one cell."""

    observation: Observation  # the value of each rank is what it displays
    ranks: tuple[int, ...]  # the ranks that ran the cell
    new_group: bool = False  # the next cell has a new process group
    stopped: str | None = None  # if the user stopped it: what the ranks were doing
    lost: tuple[int, ...] = ()  # ranks that were replaced by new processes, without variables
    late: tuple[int, ...] = ()  # those of them that could not be interrupted
    lost_variables: tuple[str, ...] = ()  # of these ranks, as far as they are known


class Session:
    """N ranks, each with a namespace that persists from cell to cell.

    Raises:
        ValueError: the number of ranks is not allowed.
        LauncherError: the ranks could not be started.
    """

    def __init__(self, world_size: int) -> None:
        check_world_size(world_size)
        self.world_size = world_size
        self._stack = ExitStack()
        self._directory = self._stack.enter_context(own_folder())
        self._groups = 0  # process groups started so far
        self._has_group = False
        self._began = 0.0  # the time from which the ranks count seconds
        self._detector = DeadlockDetector(world_size)
        self._variables: list[list[str]] = [[] for _ in range(world_size)]  # as last reported
        try:
            processes = _own_launcher(self._stack).started(world_size, str(self._directory), ())
            self._processes = self._stack.enter_context(processes)
            self._states = [ResidentRank(*pair) for pair in enumerate(self._processes.lines)]
            for state in self._states:
                self._set_up(state)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the ranks, and all processes that they started."""
        self._stack.close()

    def run(
        self,
        source: str,
        name: str,
        ranks: Collection[int],
        each_time: Callable[[Sequence[str], Failure | None, Run], None] = lambda *_: None,
    ) -> CellOutcome:
        """Run a cell on some of the ranks; KeyboardInterrupt stops it on all of them.

        Args:
            source: the Python source of the cell.
            name: the name of the cell in messages: "In [3]".
            ranks: the ranks that run it.
            each_time: called repeatedly with what each rank has printed so far, the failure of a
                rank while other ranks are running, and the run.

        Raises:
            LauncherError: the ranks have ended; this session can no longer be used.
        """
        lost = self._make_ready()
        self._detector.renumber()
        self._detector.idle = set(range(self.world_size)) - set(ranks)
        run = self._ask("cell", ranks, source=source, name=name)
        stopped, late = None, set[int]()
        try:
            seen = run.observe(lambda: each_time(self._printed(), run.failed(), run))
        except KeyboardInterrupt:
            seen, stopped = run.so_far(run.failed()), run.at_work()
        if not all(state.over for state in self._states):
            late = self._end(run)
        seen = replace(seen, output=tuple(self._printed()))
        if any(state.raised and state.raised.in_collective for state in self._states):
            self._lose_group()  # gloo has closed a connection
        lost |= late | self._replace_dead()
        lost_variables = dict.fromkeys(n for rank in lost for n in self._variables[rank])
        return CellOutcome(
            observation=self._shown(seen, lost, run.began - self._began),
            ranks=tuple(sorted(ranks)),
            new_group=not self._has_group,
            stopped=stopped,
            lost=tuple(sorted(lost)),
            late=tuple(sorted(late)),
            lost_variables=tuple(lost_variables),
        )

    def push(self, name: str, value: Any) -> None:
        """Set a variable on each rank.

        Raises:
            TypeError: the value can't be sent to another process.
        """
        try:
            body = pickles.pack(dict, {name: value})
        except Exception as error:  # noqa: BLE001 - a value's own pickling may raise anything
            raise TypeError(
                f"{name} can't be sent to the ranks, which are other processes: {error}"
            ) from None
        self._everywhere("push", body)

    def pull(self, name: str) -> list[dict[str, Any]]:
        """Return, for each rank, a dict with the variable's value, or an empty one.

        Raises:
            RankFailure: the value of a rank is not plain data.
        """
        return list(self._everywhere("pull", name=name))

    def status(self) -> list[dict[str, Any]]:
        """Return each rank's process id, as the rank sees it, and the names of its variables."""
        return list(self._everywhere("status"))

    def _everywhere(self, kind: str, body: bytes = b"", **header: Any) -> Observation:
        self._replace_dead()
        seen = self._ask(kind, range(self.world_size), body, **header).observe()
        if seen.failure is not None:
            raise RankFailure(seen)
        return seen

    def _make_ready(self) -> set[int]:
        """Ensure that all ranks run and are in a process group; return those that were replaced."""
        lost = self._replace_dead()
        for _ in range(MEETINGS):
            if not self._has_group:
                lost |= self._meet()
        if not self._has_group:
            raise LauncherError("the ranks could not start a process group")
        return lost

    def _shown(self, seen: Observation, lost: Collection[int], since: float) -> Observation:
        """Store the ranks' variables; return a cell's observation, with seconds counted from 0."""
        for rank, value in enumerate(seen.values):
            if rank in lost:
                self._variables[rank] = []
            elif value is not None:
                self._variables[rank] = value["variables"]
        return replace(
            seen,
            values=tuple(value and value["shown"] for value in seen.values),
            events=tuple(replace(event, seconds=event.seconds - since) for event in seen.events),
        )

    def _ask(
        self,
        kind: str,
        ranks: Collection[int],
        body: bytes = b"",
        *,
        timeout: float = math.inf,
        grace: float = math.inf,
        **header: Any,
    ) -> Run:
        for state in self._states:
            state.begin(asked=state.rank in ranks)
        run = Run(self._processes, self._states, self._detector, _shows, timeout, grace)
        for rank in ranks:
            header |= {"nonce": run.nonce, "began": run.began}
            self._states[rank].send(kind, header, body, START_SECONDS)
        return run

    def _meet(self) -> set[int]:
        """Start a process group on all ranks; replace and return the ranks where this fails.

        A rank may lack parts of torch if a cell was stopped in the middle of an import.
        """
        self._lose_group()
        for state in self._states:
            state.events = events.Reader(state.rank)  # each group numbers its events from 0
        self._groups += 1
        store = str(self._directory / f"store{self._groups}")
        everyone = range(self.world_size)
        run = self._ask("group", everyone, timeout=START_SECONDS, grace=0.0, store=store)
        self._began = run.began
        failure = run.observe().failure
        self._has_group = failure is None
        if failure is None:
            return set()
        unable = {state.rank for state in self._states if state.raised}
        lost = self._end(run) | unable
        for rank in unable:
            self._replace(rank)
        return lost | self._replace_dead()

    def _end(self, run: Run) -> set[int]:
        """End a cell on the ranks that still run it; replace and return those that do not stop."""
        messages = self._wake_up_calls()
        self._lose_group()
        for state in self._states:
            if messages or not state.over:
                header = {"messages": messages.get(state.rank, []), "await": bool(messages)}
                state.send("wake" if state.over else "end", header, b"", SEND_SECONDS)
        late = {state.rank for state in run.await_end(END_SECONDS)}
        for rank in late:
            self._replace(rank)
        return late

    def _wake_up_calls(self) -> dict[int, list[list[Any]]]:
        """Return, by sender, the messages for ranks that wait for one from any rank.

        Only a message ends such a wait: gloo does not check for cut connections there.
        """
        alive = {state.rank for state in self._states if not state.closed}
        found: dict[int, list[list[Any]]] = defaultdict(list)
        for call in self._detector.waits_for_anyone():
            for sender in sorted(call.expected & alive - {call.rank})[:1]:
                place = call.collective
                found[sender].append([place.group, call.rank, place.tag])
        return found

    def _lose_group(self) -> None:
        """Forget all collectives, so that the next cell starts a new process group."""
        self._has_group = False
        self._detector = DeadlockDetector(self.world_size)

    def _replace_dead(self) -> set[int]:
        dead = {state.rank for state in self._states if state.closed or state.broken}
        dead |= self._processes.exit_codes().keys()
        for rank in dead:
            self._replace(rank)
        return dead

    def _replace(self, rank: int) -> None:
        self._lose_group()
        self._processes.replace(rank)
        self._states[rank] = ResidentRank(rank, self._processes.lines[rank])
        self._set_up(self._states[rank])

    def _set_up(self, state: ResidentRank) -> None:
        """Send a new process its rank and environment."""
        setup = {
            "cells": True,
            "rank": state.rank,
            "world_size": self.world_size,
            "directory": str(self._directory),
            "cwd": str(Path.cwd()),
            "environ": {**rank_environ(), "MPLBACKEND": BACKEND},
            "authkey": current_process().authkey.hex(),
            "path": [entry or str(Path.cwd()) for entry in sys.path],
            "seed": random.SystemRandom().getrandbits(32),
            "began": self._began,
        }
        state.send("setup", setup, b"", START_SECONDS)

    def _printed(self) -> list[str]:
        return [state.printed() for state in self._states]


def _shows(file: str) -> bool:
    return is_users(file, ())


def _own_launcher(stack: ExitStack) -> Any:
    """Return a launcher for these ranks only: they would block a shared one."""
    launcher = get_launcher()
    if not isinstance(launcher, ForkLauncher):
        return launcher
    own = ForkLauncher()
    stack.callback(own.close)
    own.adopt(launcher.sibling(outlives=True))
    return own
