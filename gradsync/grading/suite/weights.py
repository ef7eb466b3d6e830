"""What a suite says about its tests without running them: points, titles and sections."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from gradsync.course.catalogue import Audience, Course
from gradsync.errors import GraderError
from gradsync.grading.suite.plugin import POINTS, title_of
from gradsync.grading.suite.run import run_pytest
from gradsync.grading.suite.verdicts import exercise_of, verdict_id
from gradsync.records import Report, Verdict

DIGITS = 6  # a test's points are divided among its parameter sets; thirds need rounding


@dataclass(frozen=True, slots=True)
class Weight:
    """A test that was not run."""

    exercise: str
    points: float
    title: str
    guide: str


def weights_of(course: Course, audience: Audience, phase: str) -> dict[str, Weight]:
    """Return the tests of a suite by the ids of their verdicts.

    Raises:
        CourseError: the phase has no such suite.
        GraderError: the suite can't be imported.
    """
    suite = course.suite(audience, phase)
    found = _Collected()
    code, output = run_pytest([suite], course.root, ["--collect-only"], found)
    if code != pytest.ExitCode.OK:
        raise GraderError(f"pytest ended with {code!r}:\n{output}")
    return {
        verdict_id(item.path, item.name): Weight(
            exercise_of(item),
            item.stash[POINTS],
            title_of(item),
            course.find(exercise_of(item)).guide,
        )
        for item in found.items
        if exercise_of(item)
    }


def points_of(course: Course, audience: Audience, phase: str) -> dict[str, float]:
    """Return the points of a suite by exercise; raises the errors of `weights_of`."""
    points: dict[str, float] = defaultdict(float)
    for weight in weights_of(course, audience, phase).values():
        points[weight.exercise] += weight.points
    return {exercise: round(most, DIGITS) for exercise, most in points.items()}


def reweighted(report: Report, weights: Mapping[str, Weight]) -> Report | None:
    """Return a report with the current points and titles, or None if it is of other tests."""
    phases = {verdict.phase for verdict in report.verdicts}
    current = {id for id in weights if id.partition("/")[0] in phases}
    if current != {verdict.id for verdict in report.verdicts}:
        return None
    verdicts = tuple(_reweighted(verdict, weights[verdict.id]) for verdict in report.verdicts)
    return replace(report, verdicts=verdicts)


def _reweighted(verdict: Verdict, weight: Weight) -> Verdict:
    return replace(
        verdict,
        points=weight.points if verdict.status == "passed" or verdict.given else 0.0,
        max_points=weight.points,
        title=weight.title,
        guide=weight.guide,
    )


class _Collected:
    """A pytest plugin that keeps the collected tests."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items
