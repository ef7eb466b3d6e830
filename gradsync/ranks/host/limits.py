"""Trusted: limits of a run that do not depend on how busy the machine is.

Time in which the ranks had no core to run on does not count, or only processor time does.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from gradsync.ranks.host.launchers.launcher import RankProcesses

WAITING_SECONDS = 1.0  # while all remaining ranks wait for each other and one has failed
MOST = 10  # times the limit, however busy the machine is
QUIET_SECONDS = 0.4  # in which ranks that wait report nothing, until no message is on its way
IDLE_SECONDS = 1.0  # the same for ranks that are not seen to wait
BUSY_SECONDS = 0.1  # of processor time in these, for a rank that computes
LOOK_SECONDS = 0.25  # between two measurements of processor time


class Deadline:
    """A time limit that starts at `now`; time in which the ranks could not run does not count."""

    def __init__(self, processes: RankProcesses, now: float) -> None:
        self._processes = processes
        self._began = now
        self._starved_before = processes.starved()
        self._lost = 0.0  # seconds that do not count; measured only when needed

    def over(self, seconds: float, now: float) -> bool:
        """Return whether more than so many seconds have passed."""
        if now <= self._end(seconds):
            return False
        # `starved` falls when the worst-off thread ends, but lost time is not found again.
        self._lost = max(self._lost, self._processes.starved() - self._starved_before)
        return now > self._end(seconds)

    def _end(self, seconds: float) -> float:
        return self._began + min(seconds + self._lost, MOST * seconds)


class Grace:
    """A time limit for the other ranks once a rank has failed.

    They may compute for a while. If all of them wait, the limit is short: gloo does not always
    raise an error on ranks that wait for a dead one.
    """

    def __init__(self, processes: RankProcesses, now: float, seconds: float) -> None:
        self._processes = processes
        self._seconds = seconds
        self._since = Deadline(processes, now)
        self._waiting: Deadline | None = None

    def over(self, now: float, *, all_wait: bool) -> bool:
        """Return whether the limit is reached."""
        self._waiting = (self._waiting or Deadline(self._processes, now)) if all_wait else None
        waited = self._waiting is not None and self._waiting.over(WAITING_SECONDS, now)
        return waited or self._since.over(self._seconds, now)


class Quiet:
    """The time in which no rank reports anything, although some of them are not seen to wait."""

    def __init__(self, processes: RankProcesses, now: float) -> None:
        self._processes = processes
        self.end(now)

    def end(self, now: float) -> None:
        """Start again: a rank has reported something."""
        self._began = now
        self._since: Deadline | None = None
        self._ran: dict[int, float] = {}
        self._busy = 0  # how often they computed in the meantime

    def over(self, now: float, ranks: Collection[int], *, all_wait: bool) -> bool:
        """Return whether these ranks neither report nor compute any more.

        Ranks that compute get ten times as long: they may look for something again and again.
        """
        if now - self._began < LOOK_SECONDS:
            return False
        if self._since is None:
            self._since, self._ran = Deadline(self._processes, now), self._processes.ran()
        if not self._since.over(QUIET_SECONDS if all_wait else IDLE_SECONDS, now):
            return False
        ran = {} if all_wait else self._processes.ran()
        used = [ran.get(rank, 0.0) - self._ran.get(rank, 0.0) for rank in ranks]
        if max(used, default=0.0) < BUSY_SECONDS or self._busy == MOST:
            return True
        self._busy += 1
        self._since = None
        return False


class ProcessorTime:
    """A limit on the processor time of each rank, from now on."""

    def __init__(self, processes: RankProcesses, seconds: float) -> None:
        self.seconds = seconds
        self._processes = processes
        self._before = processes.ran()
        self._looked = 0.0

    def used(self) -> dict[int, float]:
        """Return how many seconds each rank has used."""
        return {
            rank: ran - self._before.get(rank, 0.0) for rank, ran in self._processes.ran().items()
        }

    def over(self, now: float) -> bool:
        """Return whether a rank has exceeded the limit; measure it every `LOOK_SECONDS`."""
        if self.seconds == math.inf or now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        return max(self.used().values(), default=0.0) > self.seconds
