"""gradebook.csv: a class at a glance, a line for each submission."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from io import StringIO

from gradsync.records import Grade
from gradsync.reports.text import carriable

COLUMNS = ("submission", "score", "max_score", "phase1", "phase2", "status")

# What a spreadsheet takes for the beginning of a formula, which could read other cells or call out.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_LINE_BREAK = re.compile(r"[\r\n]+")


def render(grades: Sequence[Grade]) -> str:
    """The grades as CSV, in the order given."""
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(grade) for grade in grades)
    return lines.getvalue()


def _row(grade: Grade) -> tuple[str | float | None, ...]:
    return (  # None leaves its cell empty
        _cell(grade.submission),
        grade.score,
        grade.max_score,
        grade.phases.get("phase1"),
        grade.phases.get("phase2"),
        grade.status,
    )


def _cell(text: str) -> str:
    """The text on one line, as no spreadsheet computes it."""
    disarmed = "'" + text if text.startswith(_FORMULA) else text
    return carriable(_LINE_BREAK.sub(" ", disarmed))
