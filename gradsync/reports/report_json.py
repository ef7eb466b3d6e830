"""Write a report as report.json, and read it back whole."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from gradsync.records import Collective, Event, Report
from gradsync.reports import summary
from gradsync.reports.text import carriable, finite

MANY = (Event, Collective)  # a report may have thousands: fields with default values are left out


class UnreadableReportError(ValueError):
    """A file is not a report of this version."""


def encode(report: Report) -> bytes:
    """Return the report as JSON, with the most important keys first and a line for each test."""
    tests = ",\n".join(map(_json, report.verdicts))
    content = {
        "submission": report.submission,
        "score": finite(report.score),
        "max_score": finite(report.max_score),
        "seconds": report.seconds,
        "status": report.status,
        "phases": {phase: finite(points) for phase, points in report.phases.items()},
        "exercises": {
            each.id: {"points": finite(each.points), "max_points": finite(each.max_points)}
            for each in summary.exercises(report)
        },
        "seed": report.seed,
        "notes": report.notes,
        "command": report.command,
        "made_from": report.origins,
        "graded_at": report.graded_at,
        "prints": report.prints,
        "problem": report.problem,
        "traceback": report.traceback,
    }
    lines = [f'"tests": [\n{tests}\n]', *(f'"{key}": {_json(of)}' for key, of in content.items())]
    lines.insert(4, lines.pop(0))  # after the numbers
    return ("{" + ",\n".join(lines) + "}\n").encode()


def decode(content: bytes) -> Report:
    """Return the report in a report.json.

    Raises:
        UnreadableReportError: it is damaged, or was written by an earlier version.
    """
    try:
        found = msgspec.json.decode(content)
        known = {**found, "verdicts": found["tests"], "origins": found["made_from"]}
        return msgspec.convert(known, Report)
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError, RecursionError) as problem:
        raise UnreadableReportError(str(problem)) from None


def _json(value: object) -> str:
    return msgspec.json.encode(_storable(value)).decode()


def _storable(value: Any) -> Any:
    """Return a value of plain data that JSON in UTF-8 can hold: texts may come from learners."""
    if isinstance(value, str):
        return carriable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else 0.0
    if isinstance(value, tuple):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {carriable(key): _storable(item) for key, item in value.items()}
    if is_dataclass(value):
        is_short = isinstance(value, MANY)
        pairs = ((each, getattr(value, each.name)) for each in fields(value))
        return {f.name: _storable(of) for f, of in pairs if not is_short or of != f.default}
    return value
