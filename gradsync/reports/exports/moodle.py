"""Render the offline grading worksheet of a Moodle assignment, or fill in a downloaded one.

Moodle reads a learner's number from the first column, `Identifier`, and skips grades that were
changed in Moodle after `Last modified (grade)`. The columns' names are in the language of the user,
so a downloaded worksheet is understood by the order of its columns and by their content: the
identifier, the name, ..., the grade, the maximum, ..., the times of changes, the comment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradsync.class_records import ClassResults, Result
from gradsync.reports.exports import sheets
from gradsync.reports.exports.lines import lines_of, next_step, summary_of
from gradsync.reports.exports.sheets import Sheet, Table
from gradsync.reports.gradebook import cell
from gradsync.reports.text import amount, csv_text

IDENTIFIER, GRADE, FEEDBACK = "Identifier", "Grade", "Feedback comments"
MODIFIED = "Last modified (grade)"
HEADER = (
    *(IDENTIFIER, "Full name", "Email address", "Status", GRADE, "Maximum Grade"),
    *("Grade can be changed", MODIFIED, FEEDBACK),
)
PARTICIPANT = "Participant "
ID_NUMBER = "ID number"
KIND = "a worksheet of Moodle"


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
    return Sheet(csv_text([HEADER, *map(_row, data.results)]))


def _row(result: Result) -> list[str]:
    person = result.person
    identifier = result.facts.key_in("moodle") or (person.id if person else result.submission)
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
    """Return a comment on one line: the summary, the points by exercise, and the first mistake.

    An unreadable submission has no points in any exercise.
    """
    points = [
        f"{line.name} {amount(line.points)} of {amount(line.max_points)}"
        + f" ({line.by_staff})" * bool(line.by_staff)
        for line in lines_of(result)
        if (line.points < line.max_points and result.status != "unreadable") or line.by_staff
    ]
    facts = summary_of(result).splitlines()
    missing = f"Points: {'; '.join(points)}." if points else ""
    return " ".join(filter(None, [*facts, missing, next_step(result)]))


@dataclass(frozen=True, slots=True)
class _Columns:
    """The numbers of a worksheet's columns."""

    grade: int
    most: int | None  # None: a file in English that lacks it
    comment: int | None


def _filled(data: ClassResults, previous: str) -> Sheet:
    table = sheets.read(previous, KIND)
    columns = _columns(table)
    emails = [
        number for number in range(2, columns.grade) if any("@" in c for c in table.column(number))
    ]
    ids = [table.header.index(ID_NUMBER)] if ID_NUMBER in table.header else []
    found = sheets.matched(
        data,
        [
            (list(map(_number, table.column(0))), lambda result: [result.facts.key_in("moodle")]),
            *((table.column(at), sheets.id_of) for at in ids),
            *((table.column(at), sheets.email_of) for at in emails),
            ([sheets.words(cell) for cell in table.column(1)], sheets.names_of),
        ],
    )
    scored = {number: result for number, result in found.items() if result.score is not None}
    for number, result in scored.items():
        row = table.rows[number]
        row[columns.grade] = sheets.scaled_cell(result, _most(row, columns))
        if columns.comment is not None:
            row[columns.comment] = cell(feedback(result))
    maxima = [_most(table.rows[number], columns) for number in scored]
    scaled = sheets.scaled_text(scored.values(), maxima)
    return Sheet(table.text(), sheets.not_among(data, found.values()), scaled)


def _columns(table: Table) -> _Columns:
    """Find the columns of a worksheet in any language.

    Raises:
        NotASheet: it has no column of identifiers, of maxima, or of times after it.
    """
    width = len(table.header)
    if width < 4 or not table.rows or not all(map(_number, table.column(0))):
        raise sheets.refuse(KIND, "its first column has no identifiers of Moodle")
    same = [at for at in range(2, width) if len({*map(sheets.number_of, table.column(at))}) == 1]
    maxima = [at for at in same if sheets.number_of(table.rows[0][at])]
    times = [at for at in range(2, width) if all(map(_is_time, table.column(at)))]
    most = next((at for at in reversed(maxima) if times and at < times[-1]), None)
    if most is None and times and GRADE in table.header:
        comment = table.header.index(FEEDBACK) if FEEDBACK in table.header else None
        return _Columns(table.header.index(GRADE), None, comment)
    if most is None:
        raise sheets.refuse(KIND, "it has no column of the maximum grade, or of times of changes")
    comment = times[-1] + 1
    return _Columns(most - 1, most, comment if comment < width else None)


def _most(row: list[str], columns: _Columns) -> str:
    return "" if columns.most is None else row[columns.most]


def _number(cell: str) -> str:
    """Return Moodle's number of a learner: "17" for "Participant 17"."""
    found = re.search(r"\d+$", cell.strip())
    return found[0] if found else ""


def _is_time(cell: str) -> bool:
    return cell.strip() == "-" or re.search(r"\d:\d\d|(19|20)\d\d", cell) is not None
