"""Render gradebook.csv, with one line for each submission of a class.

Lines that are kept stay exactly as they were read, since a spreadsheet may have saved the file.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable
from io import StringIO
from typing import Any

from gradsync.errors import UnusableInput
from gradsync.records import Grade
from gradsync.reports.text import printable

COLUMNS = ("submission", "score", "max_score", "phase1", "phase2", "status")

# A spreadsheet takes a cell that begins with one of these for a formula, which could read other
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


def render(grades: Iterable[Grade], former: str = "") -> str:
    """Return the gradebook as CSV, sorted by submission.

    Args:
        grades: each replaces the line of its submission, or adds one.
        former: the gradebook so far; its other lines are kept.

    Raises:
        NoGradebook: `former` can't be read.
    """
    rows = _rows(former) | {cell(grade.submission): _row(grade) for grade in grades}
    lines = StringIO()
    writer = csv.DictWriter(lines, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(rows.items()))
    return lines.getvalue()


def submissions(former: str) -> set[str]:
    """Return the names of the submissions in a gradebook, as `cell` writes them.

    Raises:
        NoGradebook: it can't be read.
    """
    return set(_rows(former))


def cell(text: str) -> str:
    """Return the text on one line, safe for spreadsheets and terminals."""
    line = _LINE_BREAK.sub(" ", printable(text))
    seen = (
        c for c in unicodedata.normalize("NFKC", line) if unicodedata.category(c) not in _UNSEEN
    )
    return "'" + line if next(seen, "").startswith(_FORMULA) else line


def _rows(text: str) -> dict[str, dict[str, Any]]:
    """Return the lines of a gradebook by submission."""
    if not text.strip():
        return {}
    try:
        reader = csv.DictReader(StringIO(text, newline=""))
        if tuple(reader.fieldnames or ())[: len(COLUMNS)] != COLUMNS:
            raise NoGradebook(f"its first line is {text.splitlines()[0][:80]!r}")
        rows = [{name: row.get(name) for name in COLUMNS} for row in reader]
    except csv.Error as problem:
        raise NoGradebook(str(problem)) from None
    return {row["submission"] or "": row for row in rows}


def _row(grade: Grade) -> dict[str, Any]:
    return {  # None leaves its cell empty
        "submission": cell(grade.submission),
        "score": grade.score,
        "max_score": grade.max_score,
        "phase1": grade.phases.get("phase1"),
        "phase2": grade.phases.get("phase2"),
        "status": grade.status,
    }
