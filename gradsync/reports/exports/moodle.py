"""Render the offline grading worksheet of a Moodle assignment, or fill in a downloaded one.

Moodle reads a learner's number from `Identifier`, and finds the columns by their English names. It
skips grades that were changed in Moodle after `Last modified (grade)`.
"""

from __future__ import annotations

from gradsync.class_records import ClassResults, Result
from gradsync.reports.exports import sheets
from gradsync.reports.exports.lines import lines_of, summary_of
from gradsync.reports.exports.sheets import Sheet
from gradsync.reports.gradebook import cell
from gradsync.reports.text import amount

IDENTIFIER, GRADE, FEEDBACK = "Identifier", "Grade", "Feedback comments"
MODIFIED = "Last modified (grade)"
HEADER = (
    *(IDENTIFIER, "Full name", "Email address", "Status", GRADE, "Maximum Grade"),
    *("Grade can be changed", MODIFIED, FEEDBACK),
)
PARTICIPANT = "Participant "


def render(data: ClassResults, previous: str = "") -> Sheet:
    """Return the scores of a class as CSV.

    Args:
        data: the results.
        previous: the text of a worksheet that was downloaded from Moodle: grades and comments are
            filled in. Only such a file has Moodle's own numbers of the learners.

    Raises:
        NotASheet: `previous` is not a worksheet.
    """
    if previous.strip():
        return _filled(data, previous)
    rows = [_row(result) for result in data.results]
    return Sheet(sheets.write(HEADER, rows))


def _row(result: Result) -> list[str]:
    person = result.person
    identifier = person.id if person else result.submission
    if identifier.isdecimal():
        identifier = PARTICIPANT + identifier
    return [
        cell(identifier),
        cell(person.name if person else result.submission),
        cell(person.email if person else ""),
        "No submission" if result.status == "missing" else "Submitted for grading",
        sheets.score_cell(result),
        "" if result.max_score is None else amount(result.max_score),
        "Yes",
        "-",
        cell(feedback(result)),
    ]


def feedback(result: Result) -> str:
    """Return a comment on one line: the summary, then the points by exercise.

    An unreadable submission has no points in any exercise.
    """
    points = [
        f"{line.name} {amount(line.points)} of {amount(line.max_points)}"
        for line in lines_of(result)
        if line.points < line.max_points and result.status != "unreadable"
    ]
    facts = summary_of(result).splitlines()
    missing = f"Points: {'; '.join(points)}." if points else ""
    return " ".join([*facts, *([missing] if missing else [])])


def _filled(data: ClassResults, previous: str) -> Sheet:
    header, rows = sheets.read(previous, (IDENTIFIER, GRADE, MODIFIED), "a worksheet of Moodle")
    learners = [_learner(dict(zip(header, row, strict=True))) for row in rows]
    found = sheets.matched(data, learners, ("ID number", "Email address", IDENTIFIER, "Full name"))
    for number, result in found.items():
        row = rows[number]
        if result.score is not None:
            row[header.index(GRADE)] = sheets.score_cell(result)
            if FEEDBACK in header:
                row[header.index(FEEDBACK)] = cell(feedback(result))
    return Sheet(sheets.write(header, rows), sheets.not_among(data, found.values()))


def _learner(row: dict[str, str]) -> dict[str, str]:
    """Return a row with Moodle's number alone as the identifier."""
    return row | {IDENTIFIER: row[IDENTIFIER].removeprefix(PARTICIPANT)}
