"""Render report.json for other tools, and read a grade from it in a later run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, get_args

from gradsync.records import Diagnosis, Grade, GradeStatus, Origin, Printed, Report, Verdict
from gradsync.reports import summary
from gradsync.reports.text import carriable, finite


def render(report: Report) -> str:
    """Return the report as JSON, with the most important keys first."""
    grade = summary.grade(report)
    content = {
        "submission": carriable(grade.submission),
        "score": grade.score,
        "max_score": grade.max_score,
        "seconds": finite(report.seconds),
        "tests": [_test(verdict) for verdict in report.verdicts],
        "seed": report.seed,
        "notes": [carriable(note) for note in report.notes],
        "status": grade.status,
        "phases": dict(grade.phases),
        "exercises": {carriable(each.id): _exercise(each) for each in summary.exercises(report)},
        "made_from": None if report.origin is None else asdict(report.origin),
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def read(text: str, origin: Origin, seed: int) -> Grade | None:
    """Return the grade in a report.json, if it is complete and has this origin and seed."""
    try:
        content = json.loads(text)
        if (content["made_from"], content["seed"]) != (asdict(origin), seed):
            return None
        status: GradeStatus = content["status"]
        if status not in get_args(GradeStatus):
            return None
        return Grade(
            submission=str(content["submission"]),
            status=status,
            score=finite(content["score"]),
            max_score=finite(content["max_score"]),
            phases={str(phase): finite(points) for phase, points in content["phases"].items()},
        )
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None  # damaged, or not one of our reports


def _exercise(exercise: summary.Exercise) -> dict[str, float]:
    return {"points": finite(exercise.points), "max_points": finite(exercise.max_points)}


def _test(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": carriable(verdict.id),
        "exercise": carriable(verdict.exercise),
        "points": finite(verdict.points),
        "max_points": finite(verdict.max_points),
        "status": verdict.status,
        "message": carriable(verdict.message),
        "diagnosis": None if verdict.diagnosis is None else _diagnosis(verdict.diagnosis),
        "output": [_printed(block) for block in verdict.output],
    }


def _printed(block: Printed) -> dict[str, Any]:
    return {
        "ranks": list(block.ranks),
        "lines": [carriable(line) for line in block.lines],
        "omitted": block.omitted,
    }


def _diagnosis(diagnosis: Diagnosis) -> dict[str, Any]:
    known: dict[str, Any] = {
        "code": carriable(diagnosis.code),
        "ranks": list(diagnosis.ranks),
        "explanation": carriable(diagnosis.explanation),
    }
    if diagnosis.where is not None:
        known["where"] = carriable(diagnosis.where)
    if diagnosis.guide is not None:
        known["guide"] = carriable(diagnosis.guide)
    return known
