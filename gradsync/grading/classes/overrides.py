"""Read overrides.csv: points that staff give instead of the points of the tests."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path

from gradsync.class_records import Override
from gradsync.grading.classes.tables import read_table
from gradsync.text import listed

COLUMNS = ("submission", "exercise", "points", "reason", "by")

Overrides = dict[str, dict[str, Override]]  # submission -> exercise -> its override


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
