"""gradebook.csv: a class at a glance, a line for each submission."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Sequence
from io import StringIO

from gradsync.records import Grade
from gradsync.reports.text import printable

COLUMNS = ("submission", "score", "max_score", "phase1", "phase2", "status")

# What a spreadsheet takes for the beginning of a formula, which could read other cells or call out;
# some do so for the wide forms of these signs, too, and look past what is not seen.
_FORMULA = ("=", "+", "-", "@")
_UNSEEN = ("Cc", "Cf", "Zl", "Zp", "Zs")  # Unicode's categories of controls, marks and blanks
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
    """The text on one line, as no spreadsheet computes it and no terminal obeys it."""
    line = _LINE_BREAK.sub(" ", printable(text))
    seen = (
        c for c in unicodedata.normalize("NFKC", line) if unicodedata.category(c) not in _UNSEEN
    )
    return "'" + line if next(seen, "").startswith(_FORMULA) else line
