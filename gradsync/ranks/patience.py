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
    """A wait that began at `now`; time in which the ranks could not run does not count."""

    def __init__(self, crew: Starving, now: float) -> None:
        self._crew = crew
        self._began = now
        self._starved_before = crew.starved()
        self._lost = 0.0  # seconds that do not count, as far as it has mattered yet

    def over(self, seconds: float, now: float) -> bool:
        """Tell whether it has lasted for more than so many seconds."""
        if now <= self._end(seconds):
            return False
        self._lost = self._crew.starved() - self._starved_before
        return now > self._end(seconds)

    def _end(self, seconds: float) -> float:
        return self._began + min(seconds + self._lost, MOST * seconds)


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
