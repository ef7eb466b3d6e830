"""What changes the points of tests: overrides.csv, from staff, and the rules on lateness."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from io import StringIO
from pathlib import Path

from gradsync.class_records import Override, Person, Result
from gradsync.course.settings import LateRules
from gradsync.grading.classes.tables import read_table
from gradsync.submission.contents import listing
from gradsync.text import counted, listed, verb

COLUMNS = ("submission", "exercise", "points", "reason", "by")

Overrides = dict[str, dict[str, Override]]  # submission -> exercise -> its override
DAY = 24 * 60 * 60  # seconds


def read_overrides(
    path: Path, exercises: Mapping[str, Sequence[str]]
) -> tuple[Overrides, list[str]]:
    """Return the overrides in a file, and warnings on exercises that the course does not have.

    Args:
        path: the file; it need not exist.
        exercises: ids of the course's exercises, by their ids and by their names.

    Raises:
        TableError: the file can't be read, a value is missing or not a number, or a second line
            is about the same exercise of a submission.
    """
    found: Overrides = {}
    warnings: list[str] = []
    if not path.exists():
        return found, warnings
    for row in read_table(path, COLUMNS):
        if empty := [column for column in COLUMNS if not row[column]]:
            raise row.error(f"the value of {empty[0]!r} is missing")
        points = row.number("points")
        if points < 0:
            raise row.error(f"points must not be negative, but they are {row['points']}")
        meant = exercises.get(row["exercise"], ())
        if len(meant) != 1:
            problem = f"several exercises {row['exercise']!r}: write {listed(meant, 'or')}"
            if not meant:
                problem = f"no exercise {row['exercise']!r}"
            warnings.append(
                f"{path.name}, line {row.line}: the course has {problem}. The line is ignored."
            )
            continue
        [exercise] = meant
        override = Override(row["submission"], exercise, points, row["reason"], row["by"], row.line)
        of_submission = found.setdefault(override.submission, {})
        if exercise in of_submission:
            raise row.error(f"{exercise} of {override.submission} occurs a second time")
        of_submission[exercise] = override
    return found, warnings


def merged_overrides(files: Iterable[Path]) -> tuple[str, list[str]]:
    """Return the text of one file with the lines of all files, and warnings on contradictions.

    Without a line, the text is "".

    Raises:
        TableError: a file can't be read.
    """
    lines: dict[tuple[str, str], tuple[Path, list[str]]] = {}
    warnings = []
    for file in files:
        for row in read_table(file, COLUMNS):
            cells = [row[column] for column in COLUMNS]
            first, known = lines.setdefault((row["submission"], row["exercise"]), (file, cells))
            if known != cells:
                warnings.append(
                    f"{first} and {file} have different points for {row['exercise']} of "
                    f"{row['submission']}. The points in {first} count."
                )
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS] * bool(lines))
    writer.writerows(cells for _, cells in lines.values())
    return text.getvalue(), warnings


def days_late(rules: LateRules, handed_in: datetime | None, person: Person | None) -> float:
    """Return the days after the due time, the person's extension and the grace period."""
    due = (person.due if person else None) or rules.due
    if due is None or handed_in is None:
        return 0.0
    allowed = rules.grace_days + (person.days if person else 0.0)
    return max((handed_in - due).total_seconds() / DAY - allowed, 0.0)


def lacks_time(rules: LateRules, result: Result) -> bool:
    """Return whether a submission may be late, but has no known time of handing in."""
    due = (result.person.due if result.person else None) or rules.due
    return due is not None and result.handed_in is None


def untimed_text(submissions: Sequence[str]) -> str:
    """Return a warning that lateness is not calculated for submissions, and what to do."""
    return (
        f"Lateness is not calculated for {counted(len(submissions), 'submission')}, because it is "
        f"not known when {verb(submissions, 'it was', 'they were')} handed in: "
        f"{listing(submissions)}. To subtract points, write them into overrides.csv."
    )


def points_lost(rules: LateRules, days: float, score: float, max_score: float) -> float:
    """Return the points lost: each day that has begun counts, but the score stays at least 0."""
    return min(rules.per_day * math.ceil(days) * max_score, max(score, 0.0))
