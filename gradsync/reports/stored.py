"""Read all of a report.json, for the results of a class."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from gradsync.class_records import TestResult
from gradsync.records import STATUSES, Diagnosis, GradeStatus
from gradsync.reports.text import finite


@dataclass(frozen=True, slots=True)
class StoredReport:
    """The content of a report.json."""

    submission: str
    status: GradeStatus
    score: float
    max_score: float
    seconds: float
    seed: int
    tests: tuple[TestResult, ...]
    exercises: Mapping[str, tuple[float, float]]  # points and possible points
    phases: Mapping[str, float]  # the points of the graded phases
    notes: tuple[str, ...]
    made_from: Mapping[str, Any]  # the fields of a `records.Origin`


def read(text: str) -> StoredReport | None:
    """Return the content of a report.json, or None if it is damaged or is not one."""
    try:
        content = json.loads(text)
        status: GradeStatus = content["status"]
        if status not in get_args(GradeStatus):
            return None
        tests = tuple(map(_test, content["tests"]))
        return StoredReport(
            submission=str(content["submission"]),
            status=status,
            score=finite(content["score"]),
            max_score=finite(content["max_score"]),
            seconds=finite(content["seconds"]),
            seed=int(content["seed"]),
            tests=tests,
            exercises=_exercises(content.get("exercises"), tests),
            phases={str(phase): finite(points) for phase, points in content["phases"].items()},
            notes=tuple(map(str, content["notes"])),
            made_from=dict(content["made_from"] or {}),
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _exercises(
    stored: dict[str, Any] | None, tests: tuple[TestResult, ...]
) -> dict[str, tuple[float, float]]:
    if stored is not None:
        return {
            str(exercise): (finite(row["points"]), finite(row["max_points"]))
            for exercise, row in stored.items()
        }
    sums: dict[str, tuple[float, float]] = {}  # an earlier version did not store them
    for test in tests:
        points, most = sums.get(test.exercise, (0.0, 0.0))
        sums[test.exercise] = (points + test.points, most + test.max_points)
    return {exercise: (finite(points), finite(most)) for exercise, (points, most) in sums.items()}


def _test(row: dict[str, Any]) -> TestResult:
    if row["status"] not in STATUSES:
        raise ValueError(row["status"])
    found = row["diagnosis"]
    return TestResult(
        id=str(row["id"]),
        exercise=str(row["exercise"]),
        points=float(row["points"]),
        max_points=float(row["max_points"]),
        status=row["status"],
        message=str(row["message"]),
        diagnosis=None if found is None else _diagnosis(found),
    )


def _diagnosis(row: dict[str, Any]) -> Diagnosis:
    return Diagnosis(
        code=str(row["code"]),
        ranks=tuple(map(int, row["ranks"])),
        explanation=str(row["explanation"]),
        where=row.get("where"),
        guide=row.get("guide"),
    )
