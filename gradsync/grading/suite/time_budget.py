"""Limit the time that a submission's timeouts take in total.

An endless loop ends a test only at its time limit, and most tests of a suite may run that loop. So
the first test has its full limit. Later tests of the same exercise, and of exercises that need it,
have a part of their limits, and after further timeouts they are not run. A limit that the guide
promises to learners is only reduced after a timeout of its own exercise, whatever other exercises
took. Tests that run in parallel are in forks of one process, and share the counts.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

import pytest

SECONDS = 40.0  # total of all timeouts of a submission, after which each limit is reduced
PART = 0.1  # the reduced part of a limit: still ten times the time of a correct answer
# Of a test's full limit, as processor time of each rank: several times what correct answers use.
COMPUTING = 0.1
# Some parts of torch take one to three seconds of it to import, when an answer first needs them.
LEAST_COMPUTING = 5.0  # seconds
AGAIN = 0.3  # the part of that limit after a timeout
ALLOWED = 2  # timeouts of an exercise, after which its other tests are not run


class NotRun(Exception):  # noqa: N818 - not an error
    """A test is not run, because other tests of its exercise have used up its time."""


class TimeBudget:
    """Counts the timeouts of each exercise."""

    def __init__(self, needs: Mapping[str, Sequence[str]]) -> None:
        """Start without timeouts; `needs` maps each exercise to those that it builds on."""
        self._needs = needs
        self._places = {exercise: place for place, exercise in enumerate(needs, 1)}
        # Memory that forks share: the seconds of all timeouts, then the count of each exercise.
        self._numbers = memoryview(mmap.mmap(-1, 8 * (len(needs) + 1))).cast("d")

    def note(self, exercise: str, seconds: float) -> None:
        """Count a timeout of a test that took `seconds`."""
        self._numbers[0] += seconds
        self._numbers[self._places[exercise]] += 1

    def limit(self, exercise: str, seconds: float, *, promised: bool = False) -> float:
        """Return the current limit, in seconds, of a test of an exercise.

        Args:
            exercise: the exercise.
            seconds: the test's full limit.
            promised: the guide promises this limit to learners.

        Raises:
            NotRun: the test must not run.
        """
        own, below = self._timeouts(exercise), any(map(self._timeouts, self._below(exercise)))
        spent = self._numbers[0] >= SECONDS
        if own and own + below + spent >= ALLOWED:
            raise NotRun
        if promised and not own:
            return seconds
        if own or below:
            return seconds * PART
        return max(seconds * PART, min(seconds, SECONDS - self._numbers[0]))

    def processor_seconds(self, exercise: str, seconds: float) -> float:
        """Return how much processor time each rank of a test may use.

        Unlike the limit, it does not depend on what other processes do. So it can be short, and an
        endless loop is found soon.

        Args:
            exercise: the exercise.
            seconds: the test's full limit.
        """
        looped = self._timeouts(exercise) or any(map(self._timeouts, self._below(exercise)))
        return max(LEAST_COMPUTING, seconds * COMPUTING) * (AGAIN if looped else 1.0)

    def _timeouts(self, exercise: str) -> int:
        return int(self._numbers[self._places[exercise]])

    def _below(self, exercise: str) -> set[str]:
        """Return all exercises that this one builds on."""
        direct = set(self._needs[exercise])
        return direct.union(*map(self._below, direct))


BUDGET = pytest.StashKey[TimeBudget]()
