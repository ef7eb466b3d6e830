"""Trusted: time limits that do not run while other work keeps the ranks from the cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

MOST = 10  # times the seconds of a limit, whatever the machine is at


class Starving(Protocol):
    def starved(self) -> float:
        """Return for how many seconds, since it started, others kept the worst-off rank waiting."""


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


def starved(ranks: Iterable[int], helpers: Iterable[int] = ()) -> float:
    """Return for how many seconds the worst-off thread of these ranks wanted a core and had none.

    What the ranks' further threads, and the processes that they started, ran meanwhile does not
    count: with these a rank would keep itself from running for as long as it likes. 0 where the
    system does not say. The source is `/proc/PID/task/TID/schedstat`, the nanoseconds that a thread
    ran and those that it waited on a run queue (Documentation/scheduler/sched-stats.rst).

    Args:
        ranks: their process ids.
        helpers: those of what they started.
    """
    waited, taken = 0.0, sum(map(_ran, helpers))
    for pid in ranks:
        threads = list(_threads(pid))
        waited = max([waited, *(waits for _, waits in threads)])
        taken += max(0.0, _ran(pid) - max((runs for runs, _ in threads), default=0.0))
    return max(0.0, waited - taken)


def _threads(pid: int) -> Iterator[tuple[float, float]]:
    """Yield how many seconds each thread of a process ran, and waited for a core."""
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                runs, waits, _ = map(int, (task / "schedstat").read_text().split())
                yield runs / 1e9, waits / 1e9


def _ran(pid: int) -> float:
    """Return the seconds that a process ran, with its children that have ended."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0
