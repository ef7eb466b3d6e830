"""The result of each exercise of a notebook, as its grading cell shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from gradsync.records import Origin, Report
from gradsync.reports import terminal
from gradsync.reports.notebook import cell
from gradsync.reports.summary import exercises


@dataclass(frozen=True, slots=True)
class Mark:
    """The result of one exercise."""

    points: float
    max_points: float
    page: str  # HTML
    text: str

    def scaled(self, most: float) -> float:
        """Return the points on a scale to `most`, the maximum of the grading cell."""
        if not self.max_points:
            return 0.0
        return min(self.points * (most / self.max_points), most)


Marks = Mapping[str, Mark]  # by exercise: "phase1/NAME"


def marks_of(report: Report) -> Marks:
    """Return the marks of all exercises in a report."""
    marks = {}
    for exercise in exercises(report):
        seconds = sum(verdict.seconds for verdict in exercise.verdicts)
        own = replace(report, verdicts=exercise.verdicts, seconds=seconds)
        marks[exercise.id] = Mark(
            exercise.points, exercise.max_points, cell.render(own), terminal.render(own)
        )
    return marks


def render(marks: Marks, origin: Origin, seed: int) -> str:
    """Return marks as JSON, with their origin and seed."""
    entries = {exercise: asdict(mark) for exercise, mark in marks.items()}
    return (
        json.dumps({"made_from": asdict(origin), "seed": seed, "marks": entries}, indent=1) + "\n"
    )


def read(text: str, origin: Origin, seed: int) -> Marks | None:
    """Return the marks if they are complete and have this origin and seed, else None."""
    try:
        content = json.loads(text)
        if (content["made_from"], content["seed"]) != (asdict(origin), seed):
            return None
        return {exercise: Mark(**mark) for exercise, mark in content["marks"].items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return None  # incomplete, or not written by `render`
