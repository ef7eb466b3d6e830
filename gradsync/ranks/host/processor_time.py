"""Trusted: how long ranks and their helpers have run, or have waited for a core."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


class Helpers:
    """The CPU time of processes that ranks started, including those that have ended.

    If a process ignores SIGCHLD, the CPU time of its children is lost when they end. So it is read
    while they run; what a child uses after the last reading is not counted.
    """

    def __init__(self) -> None:
        self._ran: dict[int, float] = {}  # process id -> seconds

    def look(self, helpers: Iterable[int]) -> None:
        """Record the processor time of these running processes."""
        for pid in helpers:
            self._ran[pid] = max(self._ran.get(pid, 0.0), sum(runs for runs, _ in _threads(pid)))

    def ran(self) -> float:
        """Return the seconds that all of them have run, as far as recorded."""
        return sum(self._ran.values())


def starved(ranks: Iterable[int], helpers: Iterable[int] = (), seen: float = 0.0) -> float:
    """Return how many seconds the worst-off thread of these ranks has waited for a core.

    The time that the ranks' other threads and child processes ran is subtracted: otherwise a rank
    could extend its own time limit. The result is 0 if the system does not report the times.
    The source is `/proc/PID/task/TID/schedstat`: the nanoseconds that a thread ran, and that it
    waited on a run queue (Documentation/scheduler/sched-stats.rst).

    Args:
        ranks: the ranks' process ids.
        helpers: the ids of running processes that the ranks started.
        seen: the recorded seconds of all processes that the ranks started: see `Helpers`.
    """
    waited, threads, started = 0.0, 0.0, sum(sum(ran(pid)) for pid in helpers)
    for pid in ranks:
        times = list(_threads(pid))
        waited = max([waited, *(waits for _, waits in times)])
        own, children = ran(pid)
        threads += max(0.0, own - max((runs for runs, _ in times), default=0.0))
        started += children
    return max(0.0, waited - threads - max(started, seen))


def _threads(pid: int) -> Iterator[tuple[float, float]]:
    """Yield how many seconds each thread of a process has run, and waited for a core."""
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):
                runs, waits, _ = map(int, (task / "schedstat").read_text().split())
                yield runs / 1e9, waits / 1e9


def ran(pid: int) -> tuple[float, float]:
    """Return the seconds of a process, and of its children that it has waited for."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return sum(map(int, fields[11:13])) / ticks, sum(map(int, fields[13:15])) / ticks
    return 0.0, 0.0
