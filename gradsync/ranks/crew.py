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

KEPT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ")  # of a bare environment
MAX_MESSAGE = 4096  # bytes of a packet between the fork launcher and its warm process


class LauncherError(Exception):
    """The launcher itself failed: no rank is to blame."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The trusted ends of the three sockets that join it to one rank."""

    channel: socket.socket  # frames, both ways
    output: socket.socket  # the rank's stdout and stderr
    stacks: socket.socket  # where its threads stand, when asked or when it crashes

    def all(self) -> tuple[socket.socket, socket.socket, socket.socket]:
        return self.channel, self.output, self.stacks

    def close(self) -> None:
        for end in self.all():
            end.close()


class Crew(Protocol):
    """N started ranks, waiting for their task."""

    lines: list[Lines]

    def exit_codes(self) -> dict[int, int]:
        """Return the codes of the ranks that have ended, as `subprocess` writes them."""

    def excess(self) -> tuple[str, str] | None:
        """Look whether ranks take, or wanted, too much; return the diagnosis, and its words."""

    def starved(self) -> float:
        """Return for how many seconds, since it started, the worst-off rank waited for a core."""

    def ran(self) -> dict[int, float]:
        """Return for how many seconds each rank that is there has run on a core."""

    def ask_stacks(self, rank: int) -> None:
        """Have a rank write where its threads stand to its `stacks` line."""

    def replace(self, rank: int) -> None:
        """End a rank if it still runs, and start a new one in its place, with new `lines`."""


class Launcher(Protocol):
    def warm_up(self, also: Sequence[str] = ()) -> None:
        """Begin what takes long now, in the background, for a run that comes later.

        Args:
            also: further modules that ranks will use.
        """

    def crew(
        self, world_size: int, directory: str, readable: Sequence[Path]
    ) -> AbstractContextManager[Crew]:
        """Start N ranks; on leaving, end them and all that they started.

        `directory` is the run's own temporary folder, which goes with it; `readable` has the
        folders that ranks in a sandbox need besides.
        """


@contextmanager
def lines_for(world_size: int) -> Iterator[tuple[list[Lines], list[Lines]]]:
    """Open the sockets of N ranks: the trusted ends, and the ranks' ends to hand over."""
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
    """Open the sockets of one rank: the trusted ends, and the rank's."""
    pairs = [socket.socketpair() for _ in range(3)]
    return Lines(*(pair[0] for pair in pairs)), Lines(*(pair[1] for pair in pairs))


def rank_environ(*, bare: bool = False) -> dict[str, str]:
    """Return this process's environment, fit for a rank: one thread each, gloo on the loopback.

    A bare one has only what does not depend on whose machine it is, and holds no secret.
    """
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if Path("/sys/class/net/lo").exists() else {}
    one_thread = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    kept = {n: v for n, v in os.environ.items() if not bare or n in KEPT}
    return {**kept, **dict.fromkeys(one_thread, "1"), **loopback}


def command(module: str, *numbers: int) -> list[str]:
    """Return the command that calls `start` of a module of ours in a fresh interpreter.

    It imports from where this process does, but for the current folder: there may lie a
    learner's `random.py`.
    """
    here = Path.cwd()
    path = [entry for entry in sys.path if Path(entry).is_absolute() and Path(entry) != here]
    path.append(str(Path(__file__).parents[2]))
    arguments = ", ".join(map(str, numbers))
    code = f"import sys; sys.path[:] = {path!r}; from {module} import start; start({arguments})"
    return [sys.executable, "-c", code]
