"""Render gradebook.csv, with one line for each submission of a class.

It is never read: points are corrected in overrides.csv.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from gradsync.class_records import Override, Result
from gradsync.reports.text import amount, csv_text, printable

ENCODING = "utf-8-sig"  # with a byte order mark: without it, Excel shows wrong letters for umlauts
NUMBERS = ("submission", "score", "max_score")  # then the phases of the course, then the status

# After the exercises. The roster and the download give most of them.
DETAILS = (
    *("first_mistake", "overrides", "id", "name", "email", "section"),
    *("handed_in", "days_late", "days_charged", "points_lost", "attempt", "notes"),
)

WITHOUT_REPORT = ("not-graded", "missing")  # statuses of lines that are not made from a report

# A spreadsheet treats a cell that begins with one of these as a formula, which could read other
# cells or open connections. Some accept the full-width forms too, and skip invisible characters.
_FORMULA = ("=", "+", "-", "@")
# Unicode categories of control, format and space characters.
_UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")
_LINE_BREAK = re.compile(r"[\r\n]+")


def render(results: Iterable[Result], phases: Sequence[str], exercises: Sequence[str] = ()) -> str:
    """Return the gradebook as CSV, sorted by submission, for a file encoded as `ENCODING`.

    Args:
        results: the results, one for each line.
        phases: all phases of the course, which have a column each.
        exercises: ids of the exercises that have a column each.
    """
    columns = (*NUMBERS, *phases, "status", *exercises, *DETAILS)
    rows = (_row(result, phases, exercises) for result in results)
    by_name = sorted(rows, key=lambda row: row["submission"])
    return csv_text([columns, *([row[column] for column in columns] for row in by_name)])


def cell(text: str) -> str:
    """Return the text on one line, safe for spreadsheets and terminals."""
    line = _LINE_BREAK.sub(" ", printable(text))
    seen = (
        c for c in unicodedata.normalize("NFKC", line) if unicodedata.category(c) not in _UNSEEN
    )
    return "'" + line if next(seen, "").startswith(_FORMULA) else line


def _row(result: Result, phases: Sequence[str], exercises: Sequence[str]) -> dict[str, Any]:
    points = {each.exercise: each.points for each in result.exercises if not each.is_waiting}
    waiting = [f"{e.exercise} is not graded yet" for e in result.exercises if e.is_waiting]
    person, facts = result.person, result.facts
    return {  # None leaves its cell empty
        "submission": cell(result.submission),
        "score": result.score,
        "max_score": result.max_score,
        **{phase: result.phases.get(phase) for phase in phases},
        "status": result.status,
        **{exercise: points.get(exercise) for exercise in exercises},
        "first_mistake": cell(result.first_code),
        "overrides": cell(" | ".join(map(override_text, result.overrides))),
        "id": person and cell(person.id),
        "name": person and cell(person.name),
        "email": person and cell(person.email),
        "section": person and cell(person.section),
        "handed_in": result.handed_in and result.handed_in.isoformat(" ", "seconds"),
        "days_late": result.days_late or None,
        "days_charged": result.days_charged or None,
        "points_lost": result.points_lost or None,
        "attempt": f"{facts.attempt} of {facts.attempts}" if facts.attempt else None,
        "notes": cell("; ".join([*result.notes, *waiting])),
    }


def override_text(override: Override) -> str:
    """Return an override in one line: the exercise, the points, the author and the reason."""
    points = "comment" if override.points is None else amount(override.points)
    parts = (override.exercise, f"{points} by {override.by}", override.reason)
    return ": ".join(filter(None, parts))
