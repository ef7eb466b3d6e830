"""report.json: what course staff's other tools read. Its keys are the contract's."""

from __future__ import annotations

import json
from typing import Any

from gradsync.records import Diagnosis, Report, Verdict
from gradsync.reports.text import carriable, finite


def render(report: Report) -> str:
    """The report as JSON, the contract's keys first."""
    content = {
        "submission": carriable(report.submission),
        "score": finite(report.score),
        "max_score": finite(report.max_score),
        "seconds": finite(report.seconds),
        "tests": [_test(verdict) for verdict in report.verdicts],
        "seed": report.seed,
        "notes": [carriable(note) for note in report.notes],
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _test(verdict: Verdict) -> dict[str, Any]:
    return {
        "id": carriable(verdict.id),
        "exercise": carriable(verdict.exercise),
        "points": finite(verdict.points),
        "max_points": finite(verdict.max_points),
        "status": verdict.status,
        "message": carriable(verdict.message),
        "diagnosis": None if verdict.diagnosis is None else _diagnosis(verdict.diagnosis),
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
