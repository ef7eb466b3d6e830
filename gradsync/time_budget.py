"""How long the tests of one submission may run into their time limits, all together.

An endless loop ends a test only at its limit, and most tests of a suite run it. So the first test
that meets it has all of its time; later ones of the same exercise, and of what builds on it, have
a part, and then none. A grade's workers share what is known, as forks of one process.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence

import pytest

SECONDS = 40.0  # for all timeouts of a submission; each test has a part of its limit after that
PART = 0.1  # of its limit: ten times what a correct answer needs
ALLOWED = 2  # timeouts of an exercise, before its other tests are not run


class NotRun(Exception):  # noqa: N818 - nothing failed here
    """A test is not run, since others of its exercise have used up the time for it."""


class TimeBudget:
    """Counts the timeouts of each exercise."""

    def __init__(self, needs: Mapping[str, Sequence[str]]) -> None:
        """Begin with no timeout; `needs` has, by exercise, those that it builds on."""
        self._needs = needs
        self._places = {exercise: place for place, exercise in enumerate(needs, 1)}
        # A page that forks share: the seconds of all timeouts, then how many each exercise had.
        self._numbers = memoryview(mmap.mmap(-1, 8 * (len(needs) + 1))).cast("d")

    def note(self, exercise: str, seconds: float) -> None:
        """Count a timeout of a test that took so many seconds."""
        self._numbers[0] += seconds
        self._numbers[self._places[exercise]] += 1

    def limit(self, exercise: str, seconds: float) -> float:
        """Return the seconds that a test with this limit may take now.

        Raises:
            NotRun: none.
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
