"""Trusted: the processes of one run, whichever launcher started them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gradsync.ranks.fast import SWITCH
from gradsync.ranks.protocol.user_files import PACKAGE

START_SECONDS = 120.0  # to import torch from a cold disk and to start a process group
BARE_ENVIRON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "TZ",
    SWITCH,
)


class LauncherError(Exception):
    """The launcher itself failed; no rank caused it."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The trusted ends of the three sockets that connect to one rank."""

    channel: socket.socket  # frames, both ways
    output: socket.socket  # the rank's stdout and stderr
    stacks: socket.socket  # the stacks of its threads, on request or when it crashes

    def all(self) -> tuple[socket.socket, socket.socket, socket.socket]:
        return self.channel, self.output, self.stacks

    def close(self) -> None:
        for end in self.all():
            end.close()


class RankProcesses(Protocol):
    """N started ranks that wait for their task."""

    lines: list[Lines]

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended, as `subprocess` defines them."""

    def excess(self) -> tuple[str, str] | None:
        """Return the code and a description of a limit that the ranks exceed, or None."""

    def starved(self) -> float:
        """Return for how many seconds, since it started, the worst-off rank waited for a core."""

    def ran(self) -> dict[int, float]:
        """Return for how many seconds each running rank has used a core."""

    def ask_stacks(self, rank: int) -> None:
        """Ask a rank to write the stacks of its threads to its `stacks` socket."""

    def replace(self, rank: int) -> None:
        """End a rank if it still runs, and start a new one in its place, with new `lines`."""


class Launcher(Protocol):
    def warm_up(self, also: Sequence[str] = ()) -> None:
        """Start slow preparations for a later run in the background.

        Args:
            also: further modules that ranks will import.
        """

    def started(
        self, world_size: int, directory: str, readable: Sequence[Path]
    ) -> AbstractContextManager[RankProcesses]:
        """Start N ranks; on exit, end them and all processes that they started.

        `directory` is the run's temporary folder, which is removed with it. `readable` has further
        folders that ranks in a sandbox can read.
        """


@contextmanager
def lines_for(world_size: int) -> Iterator[tuple[list[Lines], list[Lines]]]:
    """Open the sockets of N ranks; yield the trusted ends and the ranks' ends."""
    ours: list[Lines] = []
    theirs: list[Lines] = []
    try:
        for _ in range(world_size):
            pair = open_lines()
            ours.append(pair[0])
            theirs.append(pair[1])
        yield ours, theirs
    finally:
        for lines in (*ours, *theirs):
            lines.close()


def open_lines() -> tuple[Lines, Lines]:
    """Open the sockets of one rank; return the trusted ends and the rank's ends."""
    pairs = [socket.socketpair() for _ in range(3)]
    return Lines(*(pair[0] for pair in pairs)), Lines(*(pair[1] for pair in pairs))


def rank_environ(*, bare: bool = False) -> dict[str, str]:
    """Return this process's environment for a rank: with one thread, and gloo on the loopback.

    A bare environment contains no secrets and nothing that depends on the user.
    """
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
    one_thread = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    kept = {n: v for n, v in os.environ.items() if not bare or n in BARE_ENVIRON}
    return {**kept, **dict.fromkeys(one_thread, "1"), **loopback}


def command(module: str, *numbers: int) -> list[str]:
    """Return a command that calls `start` of one of our modules in a new interpreter.

    It has this process's import path, without the current folder, which may contain a learner's
    `random.py`.
    """
    here = Path.cwd()
    path = [entry for entry in sys.path if Path(entry).is_absolute() and Path(entry) != here]
    path.append(str(PACKAGE.parent))
    arguments = ", ".join(map(str, numbers))
    code = f"import sys; sys.path[:] = {path!r}; from {module} import start; start({arguments})"
    return [sys.executable, "-c", code]
