"""Render a CSV file for the import of Canvas's gradebook, or fill in one that Canvas exported.

Canvas finds a learner by ID, then by SIS User ID, by SIS Login ID, and by name.
"""

from __future__ import annotations

import re

from gradsync.class_records import ClassResults, Result
from gradsync.reports.exports import sheets
from gradsync.reports.exports.sheets import NotASheet, Sheet
from gradsync.reports.gradebook import cell
from gradsync.reports.text import amount, csv_text
from gradsync.text import listed

HEADER = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_POSSIBLE = "    Points Possible"
KIND = "a gradebook that Canvas exported"
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
    known = [(r.facts.key_in("canvas"), r.person.id) for r in data.results if r.person]
    pairs = [pair for pair in known if pair[0]]
    is_own = bool(pairs) and all(key == id for key, id in pairs)  # the roster has Canvas's ids
    rows = [_row(result, is_own=is_own) for result in data.results]
    points = [POINTS_POSSIBLE, *[""] * (len(HEADER) - 1), amount(most)]
    return Sheet(csv_text([[*HEADER, cell(data.title)], points, *rows]))


def _row(result: Result, *, is_own: bool) -> list[str]:
    person = result.person
    own = result.facts.key_in("canvas") or (person.id if person and is_own else "")
    name = person.name if person and person.name else result.submission
    # With the ID, further ones could only contradict it: a roster's id need not be that of the SIS.
    others = ("", "") if own or person is None else (person.id, person.email)
    known = (name, own, *others, person.section if person else "")
    return [*map(cell, known), sheets.score_cell(result)]


def _filled(data: ClassResults, previous: str) -> Sheet:
    """Fill in a file by the places of its columns: their names depend on the language."""
    table = sheets.read(previous, KIND)
    header = table.header
    if len(header) < 3 or "ID" not in header[1].upper().split():
        raise sheets.refuse(KIND, "its second column is not the ID of Canvas")
    column = header.index(_assignment(header, data.title))
    # Rows whose name is empty or begins with spaces are not learners; one has the maximum.
    about = [row[column] for row in table.rows if not row[0].strip() or row[0].startswith(" ")]
    most = next((text for text in about if sheets.number_of(text)), "")
    learners = [row for row in table.rows if row[0].strip() and not row[0].startswith(" ")]
    sis = [number for number, name in enumerate(header) if re.search(r"\bSIS\b", name)][:2]
    keys = (sheets.id_of, sheets.login_of)
    found = sheets.matched(
        data,
        [
            ([row[1] for row in learners], lambda result: [result.facts.key_in("canvas")]),
            *(([row[at] for row in learners], key) for at, key in zip(sis, keys, strict=False)),
            ([sheets.words(row[0]) for row in learners], sheets.names_of),
        ],
    )
    for number, result in found.items():
        row = learners[number]
        row[column] = sheets.scaled_cell(result, most) or row[column]
    scored = [result for result in found.values() if result.score is not None]
    scaled = sheets.scaled_text(scored, [most] * len(scored))
    return Sheet(table.text(), sheets.not_among(data, found.values()), scaled)


def _assignment(header: list[str], title: str) -> str:
    """Return the name of the column to fill in."""
    if title in header:
        return title
    columns = {name: match[1] for name in header if (match := ASSIGNMENT.fullmatch(name))}
    if not columns:
        raise sheets.refuse(KIND, "it has no column of an assignment")
    same = [name for name, plain in columns.items() if plain == title]
    if len(same) == 1 or len(columns) == 1:
        return (same or list(columns))[0]
    raise NotASheet(
        "It is not clear which column to fill in, because the file has the assignments "
        f"{listed(columns.values())}. Delete all but one of these columns, or rename one to "
        f"{title!r}, the title in course.toml."
    )
