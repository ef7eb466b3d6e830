"""Render gradebook.csv, with one line for each submission of a class.

Lines that are kept stay exactly as they were read, since a spreadsheet may have saved the file.
"""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

from gradsync.errors import UnusableInput
from gradsync.records import Grade
from gradsync.reports.text import printable

NUMBERS = ("submission", "score", "max_score")  # then the phases of the course, then the status

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


def render(grades: Iterable[Grade], phases: Sequence[str], former: str = "") -> str:
    """Return the gradebook as CSV, sorted by submission.

    Args:
        grades: each replaces the line of its submission, or adds one.
        phases: all phases of the course, which have a column each.
        former: the gradebook so far; its other lines are kept.

    Raises:
        NoGradebook: `former` can't be read.
    """
    rows = _rows(former, phases) | {cell(g.submission): _row(g, phases) for g in grades}
    lines = StringIO()
    writer = csv.DictWriter(lines, _columns(phases), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for _, row in sorted(rows.items()))
    return lines.getvalue()


def submissions(former: str, phases: Sequence[str]) -> set[str]:
    """Return the names of the submissions in a gradebook, as `cell` writes them.

    Raises:
        NoGradebook: it can't be read.
    """
    return set(_rows(former, phases))


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
    """Return the lines of a gradebook by submission; phases that are new have empty cells."""
    if not text.strip():
        return {}
    try:
        reader = csv.DictReader(StringIO(text, newline=""))
        if not _is_header(tuple(reader.fieldnames or ()), phases):
            raise NoGradebook(f"its first line is {text.splitlines()[0][:80]!r}")
        rows = [{name: row.get(name) for name in _columns(phases)} for row in reader]
    except csv.Error as problem:
        raise NoGradebook(str(problem)) from None
    return {row["submission"] or "": row for row in rows}


def _is_header(names: tuple[str, ...], phases: Sequence[str]) -> bool:
    """Tell whether a gradebook begins so, of this course or of one with fewer phases."""
    known = [phase for phase in phases if phase in names]
    columns = _columns(known)
    return names[: len(columns)] == columns


def _row(grade: Grade, phases: Sequence[str]) -> dict[str, Any]:
    return {  # None leaves its cell empty
        "submission": cell(grade.submission),
        "score": grade.score,
        "max_score": grade.max_score,
        **{phase: grade.phases.get(phase) for phase in phases},
        "status": grade.status,
    }
