"""CSV files of other systems: new ones, and downloaded ones whose grades are filled in."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from gradsync.class_records import ClassResults, Result
from gradsync.errors import UnusableInput
from gradsync.reports.text import amount


class NotASheet(UnusableInput):
    """A file that should be filled in is not of the expected kind; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A rendered file, and the submissions that are not in it."""

    text: str
    not_in_file: tuple[str, ...] = ()  # submissions with a score that a downloaded file lacks


def read(text: str, needed: Iterable[str], kind: str) -> tuple[list[str], list[list[str]]]:
    """Return the header of a CSV file, and its other rows, which get the header's length.

    Raises:
        NotASheet: a column is missing, or it is not CSV.
    """
    try:
        rows = [row for row in csv.reader(StringIO(text, newline="")) if row]
    except csv.Error as problem:
        raise NotASheet(f"It is not {kind} ({problem}). Name a different file.") from None
    header = rows[0] if rows else []
    if missing := [name for name in needed if name not in header]:
        raise NotASheet(
            f"It is not {kind}: its first line has no column {missing[0]!r}. Name a different "
            "file, or one that does not exist yet."
        )
    width = len(header)
    return header, [[*row, *[""] * (width - len(row))][:width] for row in rows[1:]]


def write(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return rows as CSV, in quotes where needed."""
    lines = StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return lines.getvalue()


def score_cell(result: Result) -> str:
    """Return a score for a cell, or "" if there is none: the other system then keeps its value."""
    return "" if result.score is None else amount(result.score)


def not_among(data: ClassResults, found: Iterable[Result]) -> tuple[str, ...]:
    """Return the submissions with a score that a downloaded file has no row for."""
    covered = {result.submission for result in found}
    return tuple(
        result.submission
        for result in data.results
        if result.score is not None and result.submission not in covered
    )


def keys_of(result: Result) -> list[str]:
    """Return a learner's ids and names, the most reliable first, in lower case."""
    person = result.person
    known = [person.id, person.email, person.name] if person else []
    return [key.strip().casefold() for key in (*known, result.submission) if key.strip()]


def matched(
    data: ClassResults, rows: Sequence[Mapping[str, str]], columns: Sequence[str]
) -> dict[int, Result]:
    """Return the results that belong to rows, by the number of the row.

    Args:
        data: the results.
        rows: the cells of each row, by column.
        columns: the columns that identify a learner, the most reliable first.
    """
    found: dict[int, Result] = {}
    left = {id(result): result for result in data.results}
    for column in columns:
        numbers: dict[str, list[int]] = {}
        for number, row in enumerate(rows):
            if number not in found and (cell := row.get(column, "").strip().casefold()):
                numbers.setdefault(cell, []).append(number)
        for key, result in list(left.items()):
            hits = [number for name in keys_of(result) for number in numbers.get(name, [])]
            if len(set(hits)) == 1 and hits[0] not in found:  # two people may share a name
                found[hits[0]] = left.pop(key)
    return found
