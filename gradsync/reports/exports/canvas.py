"""Render a CSV file for the import of Canvas's gradebook, or fill in one that Canvas exported.

Canvas finds a learner by ID, then by SIS User ID, by SIS Login ID, and by name.
"""

from __future__ import annotations

import re

from gradsync.class_records import ClassResults, Result
from gradsync.reports.exports import sheets
from gradsync.reports.exports.sheets import NotASheet, Sheet
from gradsync.reports.gradebook import cell
from gradsync.reports.text import amount
from gradsync.text import listed

HEADER = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_POSSIBLE = "    Points Possible"
ASSIGNMENT = re.compile(r"(.*\S)\s*\((\d+)\)")  # "Title (id)"


def render(data: ClassResults, previous: str = "") -> Sheet:
    """Return the scores of a class as CSV.

    Args:
        data: the results.
        previous: the text of a file that Canvas exported. The scores are filled into the column of
            the assignment with the course's title, or into the only column of an assignment.

    Raises:
        NotASheet: `previous` is not such a file, or several columns could be filled in.
    """
    if previous.strip():
        return _filled(data, previous)
    most = max((result.max_score or 0.0 for result in data.results), default=0.0)
    rows = [_row(result) for result in data.results]
    points = [POINTS_POSSIBLE, *[""] * (len(HEADER) - 1), amount(most)]
    return Sheet(sheets.write([*HEADER, cell(data.title)], [points, *rows]))


def _row(result: Result) -> list[str]:
    person = result.person
    if person is None:
        return [cell(result.submission), "", "", "", "", sheets.score_cell(result)]
    known = (person.name or result.submission, "", person.id, person.email, person.section)
    return [*map(cell, known), sheets.score_cell(result)]


def _filled(data: ClassResults, previous: str) -> Sheet:
    header, rows = sheets.read(previous, HEADER[:2], "a gradebook that Canvas exported")
    column = header.index(_assignment(header, data.title))
    learners = [dict(zip(header, row, strict=True)) for row in rows]
    found = sheets.matched(data, learners, ("SIS User ID", "SIS Login ID", "ID", "Student"))
    for number, result in found.items():
        rows[number][column] = sheets.score_cell(result) or rows[number][column]
    return Sheet(sheets.write(header, rows), sheets.not_among(data, found.values()))


def _assignment(header: list[str], title: str) -> str:
    """Return the name of the column to fill in."""
    if title in header:
        return title
    columns = {name: match[1] for name in header if (match := ASSIGNMENT.fullmatch(name))}
    same = [name for name, plain in columns.items() if plain == title]
    if len(same) == 1 or len(columns) == 1:
        return (same or list(columns))[0]
    raise NotASheet(
        "It is not clear which column to fill in, because the file has the assignments "
        f"{listed(columns.values())}. Delete all but one of these columns, or rename one to "
        f"{title!r}, the title in course.toml."
    )
