"""Count the points of each exercise in a suite, without running a test."""

from __future__ import annotations

from collections import defaultdict

from gradsync.course.catalogue import Audience, Course
from gradsync.grading.suite.weights import weights_of

DIGITS = 6  # a test's points are divided among its parameter sets; thirds need rounding


def points_of(course: Course, audience: Audience, phase: str) -> dict[str, float]:
    """Return the points of a suite by exercise, such as "phase1/NAME".

    Raises:
        CourseError: the phase has no such suite.
        GraderError: the suite can't be imported.
    """
    points: dict[str, float] = defaultdict(float)
    for weight in weights_of(course, audience, phase).values():
        points[weight.exercise] += weight.points
    return {exercise: round(most, DIGITS) for exercise, most in points.items()}
