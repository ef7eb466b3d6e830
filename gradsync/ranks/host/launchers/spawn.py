"""Trusted: the launcher for systems without a safe fork; every rank imports torch itself.

Processes that a rank starts in a new session outlive it: only the fork launcher can end those.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gradsync.ranks.host.launchers.launcher import (
    Lines,
    command,
    lines_for,
    open_lines,
    rank_environ,
)
from gradsync.ranks.host.processor_time import ran, starved


class SpawnLauncher:
    def warm_up(self, also: Sequence[str] = ()) -> None:
        """Do nothing: each rank imports its modules itself."""

    @contextmanager
    def started(
        self,
        world_size: int,
        directory: str,  # noqa: ARG002
        readable: Sequence[Path],  # noqa: ARG002
    ) -> Iterator[SpawnedProcesses]:
        with lines_for(world_size) as (ours, theirs), ExitStack() as stack:
            processes = SpawnedProcesses(ours)
            stack.callback(processes.end)
            for rank, lines in enumerate(theirs):
                processes.processes.append(processes.start(rank, lines))
            yield processes


class SpawnedProcesses:
    def __init__(self, lines: list[Lines]) -> None:
        self.lines = lines
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, rank: int, lines: Lines) -> subprocess.Popen[bytes]:
        numbers = [lines.channel.fileno(), lines.stacks.fileno()]
        process = subprocess.Popen(
            command("gradsync.ranks.inside.worker", *numbers),
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            stdout=lines.output.fileno(),
            stderr=lines.output.fileno(),
            env={"PYTHONHASHSEED": str(rank + 1), **rank_environ()},
            start_new_session=True,
        )
        lines.close()
        return process

    def replace(self, rank: int) -> None:
        _end(self.processes[rank])
        self.lines[rank].close()
        self.lines[rank], theirs = open_lines()
        self.processes[rank] = self.start(rank, theirs)

    def exit_codes(self) -> dict[int, int]:
        codes = {rank: process.poll() for rank, process in enumerate(self.processes)}
        return {rank: code for rank, code in codes.items() if code is not None}

    def excess(self) -> None:
        """Return None: this launcher has no limits."""

    def starved(self) -> float:
        return starved(process.pid for process in self.processes)

    def ran(self) -> dict[int, float]:
        return {rank: ran(process.pid)[0] for rank, process in enumerate(self.processes)}

    def ask_stacks(self, rank: int) -> None:
        self.processes[rank].send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """Kill the ranks, and the processes in their sessions."""
        for process in self.processes:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(
        ProcessLookupError, PermissionError
    ):  # PermissionError: macOS, if all are zombies
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
