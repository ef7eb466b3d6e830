"""Trusted: time limits that do not run while other work keeps the ranks from the cores."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Protocol

MOST = 10  # times the seconds of a limit, whatever the machine is at


class Starving(Protocol):
    def starved(self) -> float:
        """Return for how many seconds, since it started, the worst-off rank waited for a core."""


class Patience:
    """So many seconds from now on, and as many more as the ranks could not run in."""

    def __init__(self, seconds: float, crew: Starving, now: float) -> None:
        self._crew = crew
        self._starved = crew.starved()
        self._until = now + seconds
        self._last = now + MOST * seconds

    def over(self, now: float) -> bool:
        """Tell whether the time is up."""
        if now <= self._until:
            return False
        starved = self._crew.starved()
        self._until = min(self._until + starved - self._starved, self._last)
        self._starved = starved
        return now > self._until


def starved(pid: int) -> float:
    """Return for how many seconds a process wanted to run and had no core, its worst-off thread.

    0 where the system does not say. The source is the second number of `/proc/PID/schedstat`:
    the nanoseconds spent waiting on a run queue (Documentation/scheduler/sched-stats.rst).
    """
    waits = [0]
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                waits.append(int((task / "schedstat").read_text().split()[1]))
    return max(waits) / 1e9
