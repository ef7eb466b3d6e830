"""A place that one rank passes last, when others that do not wait for it have long gone on."""

from __future__ import annotations

import time
from pathlib import Path

LATE = 0.2  # seconds
WORK = 0.03  # seconds of processor time
PATIENCE = 2.0  # seconds for all to come


def pass_gate(gate: Path | str, rank: int, world_size: int, *, last: int) -> None:
    """Come to a gate, and go through; the rank `last` when all others have had time to act.

    They have on a busy machine, too: what that rank works for meanwhile takes as much processor
    time as a fair scheduler then gives each of the others.
    """
    Path(f"{gate}-{rank}").touch()
    if rank != last:
        return
    until = time.monotonic() + PATIENCE
    others = [Path(f"{gate}-{other}") for other in range(world_size)]
    while time.monotonic() < until and not all(other.exists() for other in others):
        time.sleep(0.005)
    time.sleep(LATE)
    worked = time.thread_time() + WORK
    while time.thread_time() < worked:
        pass
