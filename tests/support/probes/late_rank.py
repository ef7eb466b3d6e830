"""A gate that one rank passes last, when all other ranks wait for it or have finished."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

STEP = 0.01  # seconds between two checks of the other ranks
REST = 0.2  # seconds for which the other ranks must be idle
COMING = 5.0  # seconds for a rank to arrive
RESTING = 3.0  # seconds for all to become idle: a rank may wait in a busy loop
IDLE = "SZX"  # asleep or ended; not running, waiting for a core, stopped or waiting for a disk


def pass_gate(gate: Path | str, rank: int, world_size: int, *, last: int) -> None:
    """Pass a gate; the rank `last` passes it when all other ranks are idle."""
    Path(f"{gate}-{rank}").write_text(str(os.getpid()))
    if rank == last:
        others = [wait_for(gate, other) for other in range(world_size) if other != last]
        let_rest(process for process in others if process is not None)


def wait_for(gate: Path | str, rank: int) -> int | None:
    """Wait until a rank arrives at a gate; return its process id, or None if it does not arrive."""
    place = Path(f"{gate}-{rank}")
    until = time.monotonic() + COMING
    while time.monotonic() < until:
        if place.exists() and (content := place.read_text()):
            return int(content)
        time.sleep(STEP)
    return None


def let_rest(processes: Iterable[int]) -> None:
    """Wait until these processes have been idle for a while, apart from this thread.

    A rank that waits for another rank sleeps, and so does a rank that has finished. A rank with
    work to do does not sleep, even if a busy machine gives it no core for a long time.
    """
    watched = list(processes)
    until = time.monotonic() + RESTING
    rested = 0.0
    while rested < REST and time.monotonic() < until:
        time.sleep(STEP)
        if all(_is_idle(process) for process in watched):
            rested += STEP


def _is_idle(process: int) -> bool:
    """Return whether a process sleeps or has ended; True if the system does not show it.

    The source is `/proc/PID/task/TID/stat` (proc(5)): the state comes after the name.
    """
    me = str(threading.get_native_id())
    try:
        threads = [it for it in Path(f"/proc/{process}/task").iterdir() if it.name != me]
        states = [(it / "stat").read_text().rpartition(")")[2].split()[0] for it in threads]
    except OSError:  # the system has no such file, or a thread has just ended
        return True
    return all(state in IDLE for state in states)
