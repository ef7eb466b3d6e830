"""A place that one rank passes last, when others that do not wait for it have long gone on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

STEP = 0.01  # seconds between two looks at the others
REST = 0.2  # seconds in which none of them has anything to do
COMING = 5.0  # seconds for one to come
RESTING = 3.0  # seconds for all to have rested: whoever waits may well be busy with it
IDLE = "SZX"  # asleep, or at its end; not running, kept from it, stopped or at a disk


def pass_gate(gate: Path | str, rank: int, world_size: int, *, last: int) -> None:
    """Come to a gate, and go through; the rank `last` when no other has anything left to do."""
    Path(f"{gate}-{rank}").write_text(str(os.getpid()))
    if rank == last:
        others = [wait_for(gate, other) for other in range(world_size) if other != last]
        let_rest(process for process in others if process is not None)


def wait_for(gate: Path | str, rank: int) -> int | None:
    """Return when a rank has come to a gate: its process id; None if it does not come."""
    place = Path(f"{gate}-{rank}")
    until = time.monotonic() + COMING
    while time.monotonic() < until:
        if place.exists() and (told := place.read_text()):
            return int(told)
        time.sleep(STEP)
    return None


def let_rest(processes: Iterable[int]) -> None:
    """Return when these processes have had nothing to do for a while, this thread apart.

    Who waits for another sleeps meanwhile, and so does who is through with all that it does. Who
    would go on does not, though a busy machine keep it from a core for long.
    """
    watched = list(processes)
    until = time.monotonic() + RESTING
    rested = 0.0
    while rested < REST and time.monotonic() < until:
        time.sleep(STEP)
        if all(_is_idle(process) for process in watched):
            rested += STEP


def _is_idle(process: int) -> bool:
    """Tell whether the threads of a process sleep, or it is gone; True where nobody can say.

    The source is `/proc/PID/task/TID/stat` (proc(5)): the state comes after the name.
    """
    me = str(threading.get_native_id())
    try:
        threads = [it for it in Path(f"/proc/{process}/task").iterdir() if it.name != me]
        states = [(it / "stat").read_text().rpartition(")")[2].split()[0] for it in threads]
    except OSError:  # there is no such place, or a thread has just ended
        return True
    return all(state in IDLE for state in states)
