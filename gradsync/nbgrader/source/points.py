"""Count the points of each exercise in a suite, without running a test."""

from __future__ import annotations

from collections import defaultdict

import pytest

from gradsync.course.catalogue import Audience, Course
from gradsync.errors import GraderError
from gradsync.grading.suite.plugin import POINTS
from gradsync.grading.suite.run import run_pytest

DIGITS = 6  # a test's points are divided among its parameter sets; thirds need rounding


def points_of(course: Course, audience: Audience, phase: str) -> dict[str, float]:
    """Return the points of a suite by exercise, such as "phase1/NAME".

    Raises:
        CourseError: the phase has no such suite.
        GraderError: the suite can't be imported.
    """
    suite = course.suite(audience, phase)
    found = _Points()
    code, output = run_pytest([suite], course.root, ["--collect-only"], found)
    if code != pytest.ExitCode.OK:
        raise GraderError(f"pytest ended with {code!r}:\n{output}")
    return {exercise: round(points, DIGITS) for exercise, points in found.points.items()}


class _Points:
    """A pytest plugin that adds up the points of the collected tests."""

    def __init__(self) -> None:
        self.points: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marker = item.get_closest_marker("exercise")
            if marker is not None:
                self.points[marker.args[0]] += item.stash[POINTS]
