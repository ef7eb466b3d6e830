"""Render gradebook.csv, with one line for each submission of a class.

A line is kept as it was read only if its submission has no report any more: all others are made
from the reports. Points are corrected in overrides.csv.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from gradsync.class_records import Override, Result
from gradsync.errors import UnusableInput
from gradsync.reports.text import amount, printable

ENCODING = "utf-8-sig"  # with a byte order mark: without it, Excel shows wrong letters for umlauts
NUMBERS = ("submission", "score", "max_score")  # then the phases of the course, then the status

# After the exercises. The roster and the download give most of them.
DETAILS = (
    *("first_mistake", "overrides", "id", "name", "email", "section"),
    *("handed_in", "days_late", "points_lost", "attempt", "notes"),
)

WITHOUT_REPORT = ("not-graded", "missing")  # statuses of lines that are not made from a report

# A spreadsheet treats a cell that begins with one of these as a formula, which could read other
# cells or open connections. Some accept the full-width forms too, and skip invisible characters.
_FORMULA = ("=", "+", "-", "@")
# Unicode categories of control, format and space characters.
_UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")
_LINE_BREAK = re.compile(r"[\r\n]+")


class NoGradebook(UnusableInput):
    """A text is not the CSV of a gradebook."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"gradebook.csv can't be read ({found}). Move it away, or choose another folder with "
            "--out."
        )


def render(
    results: Iterable[Result],
    phases: Sequence[str],
    exercises: Sequence[str] = (),
    previous: str = "",
) -> str:
    """Return the gradebook as CSV, sorted by submission, for a file encoded as `ENCODING`.

    Args:
        results: each replaces the line of its submission, or adds one.
        phases: all phases of the course, which have a column each.
        exercises: ids of the exercises that have a column each.
        previous: the gradebook so far; its lines of other submissions are kept.

    Raises:
        NoGradebook: `previous` can't be read.
    """
    columns = (*_columns(phases), *exercises, *DETAILS)
    lines = _rows(previous, phases)
    rows = {name: row for name, row in lines.items() if row["status"] not in WITHOUT_REPORT}
    for result in results:
        name = cell(result.submission)
        if result.status != "not-graded" or name not in rows:  # its report may have been removed
            rows[name] = _row(result, phases, exercises)
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(rows.items()))
    return text.getvalue()


def statuses(previous: str, phases: Sequence[str]) -> dict[str, str]:
    """Return the status of each line of a gradebook, by the name as `cell` writes it.

    Raises:
        NoGradebook: it can't be read.
    """
    return {name: row["status"] for name, row in _rows(previous, phases).items()}


def cell(text: str) -> str:
    """Return the text on one line, safe for spreadsheets and terminals."""
    line = _LINE_BREAK.sub(" ", printable(text))
    seen = (
        c for c in unicodedata.normalize("NFKC", line) if unicodedata.category(c) not in _UNSEEN
    )
    return "'" + line if next(seen, "").startswith(_FORMULA) else line


def _columns(phases: Iterable[str]) -> tuple[str, ...]:
    return (*NUMBERS, *phases, "status")


def _rows(text: str, phases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the lines of a gradebook by name; new columns have empty cells."""
    if not text.strip():
        return {}
    try:
        reader = csv.DictReader(StringIO(text, newline=""))
        if not _is_header(tuple(reader.fieldnames or ()), phases):
            raise NoGradebook(f"its first line is {text.splitlines()[0][:80]!r}")
        rows = [{str(name): row[name] for name in row if name} for row in reader]
    except csv.Error as problem:
        raise NoGradebook(str(problem)) from None
    return {row["submission"] or "": row for row in rows}


def _is_header(names: tuple[str, ...], phases: Sequence[str]) -> bool:
    """Return whether these are the columns of a gradebook of this course, or of fewer phases."""
    known = [phase for phase in phases if phase in names]
    columns = _columns(known)
    return names[: len(columns)] == columns


def _row(result: Result, phases: Sequence[str], exercises: Sequence[str]) -> dict[str, Any]:
    points = {each.exercise: each.points for each in result.exercises}
    person = result.person
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
        "points_lost": result.points_lost or None,
        "attempt": f"{result.attempt} of {result.attempts}" if result.attempt else None,
        "notes": cell("; ".join(result.notes)),
    }


def override_text(override: Override) -> str:
    """Return an override in one line: the exercise, the points, the author and the reason."""
    points = amount(override.points)
    return f"{override.exercise}: {points} by {override.by}: {override.reason}"
