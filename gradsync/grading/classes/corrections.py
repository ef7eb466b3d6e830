"""What changes the points of tests: overrides.csv, from staff, and the rules on lateness."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

from gradsync.class_records import RUBRIC, TOTAL, Override, Person, Result
from gradsync.course.settings import LateRules
from gradsync.grading.classes.tables import Row, TableError, read_table
from gradsync.reports.text import csv_text
from gradsync.submission.contents import listing
from gradsync.text import counted, full_stop, listed, verb

COLUMNS = ("submission", "exercise", "points", "reason", "by")
NEEDED = ("submission", "reason", "by")  # columns without empty cells

Overrides = dict[str, list[Override]]  # by submission
DAY = 24 * 60 * 60  # seconds


def read_overrides(
    path: Path, exercises: Mapping[str, Sequence[str]]
) -> tuple[Overrides, list[str], list[TableError]]:
    """Return the overrides in a file, warnings on unknown exercises, and the errors in the file.

    A line is about an exercise, a test (its id in report.json) or the total. Without points, it is
    a comment.

    Args:
        path: the file; it need not exist.
        exercises: ids of the course's exercises, by their ids and by their names.

    An error is a line with a value that is missing or not a number, a second line with points for
    the same thing, or a file that can't be read.
    """
    found: Overrides = {}
    warnings: list[str] = []
    problems: list[TableError] = []
    taken: set[tuple[str, str]] = set()
    try:
        for row in read_table(path, COLUMNS) if path.exists() else ():
            try:
                override = _override(row, exercises, warnings)
                if override is None:
                    continue
                key = override.submission, override.exercise
                if override.points is not None and key in taken:
                    raise row.error(
                        f"{override.exercise} of {override.submission} occurs a second time"
                    )
                if override.points is not None:
                    taken.add(key)
                found.setdefault(override.submission, []).append(override)
            except TableError as problem:
                problems.append(problem)
    except TableError as problem:
        problems.append(problem)
    return found, warnings, problems


def _override(
    row: Row, exercises: Mapping[str, Sequence[str]], warnings: list[str]
) -> Override | None:
    name = row["exercise"] or TOTAL
    meant = [name] if name == TOTAL or "::" in name else exercises.get(name, ())
    by_hand = any(each.startswith(f"{RUBRIC}/") for each in meant)  # such points correct nothing
    needed = [each for each in NEEDED if each != "reason" or not (by_hand and row["points"])]
    if empty := [repr(column) for column in needed if not row[column]]:
        raise row.error(f"the value of {listed(empty)} is missing")
    if row["points"].startswith("+"):
        raise row.error(f"points replace those of the tests, so write the sum, not {row['points']}")
    points = row.number("points") if row["points"] else None
    if points is not None and points < 0:
        raise row.error(f"points must not be negative, but they are {row['points']}")
    if len(meant) != 1:
        problem = f"several exercises {name!r}: write {listed(meant, 'or')}"
        if not meant:
            close = get_close_matches(name, exercises, n=1, cutoff=0.8)
            problem = f"no exercise {name!r}" + "".join(f". Did you mean {each}?" for each in close)
        warnings.append(
            f"{row.path.name}, line {row.line}: the course has {full_stop(problem)} The line has "
            "no effect."
        )
        return None
    return Override(row["submission"], meant[0], points, row["reason"], row["by"], row.line)


def merged_overrides(files: Iterable[Path]) -> tuple[str, list[str]]:
    """Return the text of one file with the lines of all files, and warnings on contradictions.

    Without a line, the text is "".

    Raises:
        TableError: a file can't be read.
    """
    lines: dict[tuple[str, ...], tuple[Path, list[str]]] = {}
    warnings = []
    for file in files:
        for row in read_table(file, COLUMNS):
            cells = [row[column] for column in COLUMNS]
            about = (row["submission"], row["exercise"])
            first, known = lines.setdefault(about if row["points"] else tuple(cells), (file, cells))
            if known != cells:
                warnings.append(
                    f"{first} and {file} have different points for {row['exercise']} of "
                    f"{row['submission']}. The points in {first} count."
                )
    rows = [COLUMNS, *(cells for _, cells in lines.values())]
    return csv_text(rows) if lines else "", warnings


def days_late(rules: LateRules, handed_in: datetime | None, person: Person | None) -> float:
    """Return the days after the due time, the person's extension and the grace period."""
    due = (person.due if person else None) or rules.due
    if due is None or handed_in is None:
        return 0.0
    allowed = rules.grace_days + (person.days if person else 0.0)
    return max((handed_in - due).total_seconds() / DAY - allowed, 0.0)


def days_charged(days: float) -> int:
    """Return the days that cost points: each day that has begun counts as a whole one."""
    return math.ceil(round(days * DAY) / DAY)


def lacks_time(rules: LateRules, result: Result) -> bool:
    """Return whether a submission may be late, but has no known time of handing in."""
    due = (result.person.due if result.person else None) or rules.due
    return due is not None and result.handed_in is None


def untimed_text(submissions: Sequence[str]) -> str:
    """Return a warning that lateness is not calculated for submissions, and what to do."""
    return (
        f"Lateness is not calculated for {counted(len(submissions), 'submission')}, because it is "
        f"not known when {verb(submissions, 'it was', 'they were')} handed in: "
        f"{listing(submissions)}. Write the times into a column handed_in of roster.csv, or the "
        "final points into overrides.csv."
    )


def points_lost(rules: LateRules, days: float, score: float, max_score: float) -> float:
    """Return the points lost: each day that has begun counts, but the score stays at least 0."""
    return min(rules.per_day * days_charged(days) * max_score, max(score, 0.0))
