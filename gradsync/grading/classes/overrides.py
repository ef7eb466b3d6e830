"""Read overrides.csv: points that staff give instead of those of the tests."""

from __future__ import annotations

from pathlib import Path

from gradsync.class_records import Override
from gradsync.grading.classes.tables import read_table

OVERRIDES = "overrides.csv"
COLUMNS = ("submission", "exercise", "points", "reason", "by")

Overrides = dict[str, dict[str, Override]]  # submission -> exercise -> its override


def read_overrides(path: Path, exercises: dict[str, str]) -> tuple[Overrides, list[str]]:
    """Return the overrides in a file, and warnings on exercises that the course does not have.

    Args:
        path: the file; it need not exist.
        exercises: ids of the course's exercises, by their ids and their unique names.

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
            raise row.error(f"there is no {empty[0]}")
        points = row.number("points")
        if points < 0:
            raise row.error(f"points must not be negative, but they are {row['points']}")
        exercise = exercises.get(row["exercise"])
        if exercise is None:
            warnings.append(
                f"{path.name}, line {row.line}: the course has no exercise {row['exercise']!r}. "
                "The line is ignored."
            )
            continue
        override = Override(row["submission"], exercise, points, row["reason"], row["by"])
        of_submission = found.setdefault(override.submission, {})
        if exercise in of_submission:
            raise row.error(f"{exercise} of {override.submission} occurs a second time")
        of_submission[exercise] = override
    return found, warnings
