"""Limit the total time that the tests of one submission spend on timeouts.

A test with an endless loop ends only at its time limit, and most tests of a suite may run the same
loop. So the first such test has its full time. Later tests of the same exercise, and of exercises
that build on it, have a part of it, and then none. A grade's workers, forks of one process, share
the counts.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

import pytest

SECONDS = 40.0  # for all timeouts of a submission; after that, tests have a part of their limit
PART = 0.1  # of a test's limit: still ten times what a correct answer needs
ALLOWED = 2  # timeouts of an exercise; then its other tests are not run


class NotRun(Exception):  # noqa: N818 - nothing failed here
    """A test is not run, since other tests of its exercise have used up its time."""


class TimeBudget:
    """Counts the timeouts of each exercise."""

    def __init__(self, needs: Mapping[str, Sequence[str]]) -> None:
        """Start without timeouts; `needs` maps each exercise to those that it builds on."""
        self._needs = needs
        self._places = {exercise: place for place, exercise in enumerate(needs, 1)}
        # Memory that forks share: the seconds of all timeouts, then the timeouts of each exercise.
        self._numbers = memoryview(mmap.mmap(-1, 8 * (len(needs) + 1))).cast("d")

    def note(self, exercise: str, seconds: float) -> None:
        """Count a timeout of a test that took so many seconds."""
        self._numbers[0] += seconds
        self._numbers[self._places[exercise]] += 1

    def limit(self, exercise: str, seconds: float) -> float:
        """Return how many seconds a test with this limit may take now.

        Raises:
            NotRun: the test has no time left.
        """
        own, below = self._timeouts(exercise), any(map(self._timeouts, self._below(exercise)))
        spent = self._numbers[0] >= SECONDS
        if own and own + below + spent >= ALLOWED:
            raise NotRun
        if own or below:
            return seconds * PART
        return max(seconds * PART, min(seconds, SECONDS - self._numbers[0]))

    def _timeouts(self, exercise: str) -> int:
        return int(self._numbers[self._places[exercise]])

    def _below(self, exercise: str) -> set[str]:
        """Return all exercises that this one builds on."""
        direct = set(self._needs[exercise])
        return direct.union(*map(self._below, direct))


KEPT = pytest.StashKey[TimeBudget]()
