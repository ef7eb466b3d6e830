"""CSV files of other systems: new ones, and downloaded ones whose grades are filled in."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from gradsync.class_records import ClassResults, Result
from gradsync.errors import UnusableInput
from gradsync.reports.text import amount, csv_text

NUMBER = re.compile(r"\d+(?:[.,]\d+)?")
Keys = Callable[[Result], Iterable[str]]  # what a result may be called in a column


class NotASheet(UnusableInput):
    """A file that should be filled in is not of the expected kind; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A rendered file, and the submissions that are not in it."""

    text: str
    not_in_file: tuple[str, ...] = ()  # submissions with a score that a downloaded file lacks
    scaled: str = ""  # a sentence on scores that were scaled to the platform's maximum


@dataclass(slots=True)
class Table:
    """A downloaded file: its header, and its other rows, which have the header's length."""

    header: list[str]
    rows: list[list[str]]
    delimiter: str = ","

    def column(self, number: int) -> list[str]:
        return [row[number] for row in self.rows]

    def text(self) -> str:
        return csv_text([self.header, *self.rows], self.delimiter)


def read(text: str, kind: str) -> Table:
    """Return a CSV file; spreadsheets in some languages separate cells by semicolons.

    Raises:
        NotASheet: it is not CSV.
    """
    first = text.lstrip("\n").partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    try:
        rows = [row for row in csv.reader(StringIO(text, newline=""), delimiter=delimiter) if row]
    except csv.Error as problem:
        raise NotASheet(f"It is not {kind} ({problem}). Name a different file.") from None
    header = rows[0] if rows else []
    width = len(header)
    return Table(
        header, [[*row, *[""] * (width - len(row))][:width] for row in rows[1:]], delimiter
    )


def refuse(kind: str, why: str) -> NotASheet:
    return NotASheet(
        f"It is not {kind}: {why}. Name a different file, or one that does not exist yet."
    )


def score_cell(result: Result) -> str:
    """Return a score for a cell, or "" if there is none: the other system then keeps its value."""
    return "" if result.score is None else amount(result.score)


def scaled_cell(result: Result, most: str) -> str:
    """Return a score on the scale of the platform, whose maximum is in a cell ("10.0", "10,00")."""
    possible = number_of(most)
    if result.score is None or not result.max_score or not possible:
        return score_cell(result)
    text = amount(result.score * possible / result.max_score)
    return text.replace(".", ",") if "," in most else text


def scaled_text(results: Iterable[Result], most: Iterable[str]) -> str:
    """Return a sentence on scores that were scaled, "" if none were."""
    pairs = {(r.max_score, number_of(cell)) for r, cell in zip(results, most, strict=True)}
    factors = [(a, b) for a, b in pairs if a and b and abs(a - b) > _ROUNDING]
    if not factors:
        return ""
    old, new = factors[0]
    return f"The scores are scaled from {amount(old)} to {amount(new)} points, the file's maximum."


def number_of(cell: str) -> float | None:
    """Return the number in a cell, with a decimal point or comma, or None."""
    found = NUMBER.fullmatch(cell.strip())
    return float(found[0].replace(",", ".")) if found else None


def not_among(data: ClassResults, found: Iterable[Result]) -> tuple[str, ...]:
    """Return the submissions with a score that a downloaded file has no row for."""
    covered = {result.submission for result in found}
    return tuple(
        result.submission
        for result in data.results
        if result.score is not None and result.submission not in covered
    )


def id_of(result: Result) -> list[str]:
    return [result.person.id] if result.person else [result.submission]


def login_of(result: Result) -> list[str]:
    person = result.person
    known = [person.id, person.email, person.email.partition("@")[0]] if person else []
    return [*known, result.submission]


def email_of(result: Result) -> list[str]:
    return [result.person.email] if result.person else [result.submission]


def names_of(result: Result) -> list[str]:
    """Return a learner's names, with the words in one order: "Wei Zhang" is "Zhang, Wei"."""
    person = result.person
    return [words(name) for name in ([person.name] if person else []) + [result.submission]]


def words(name: str) -> str:
    return " ".join(sorted(re.findall(r"\w+", name.casefold())))


def matched(data: ClassResults, columns: Sequence[tuple[Sequence[str], Keys]]) -> dict[int, Result]:
    """Return the results that belong to rows, by the number of the row.

    Args:
        data: the results.
        columns: the cells of columns that identify a learner, the most reliable first, each with
            what a result may be called there.
    """
    found: dict[int, Result] = {}
    left = list(data.results)
    for cells, keys in columns:
        numbers: dict[str, list[int]] = {}
        for number, cell in enumerate(cells):
            if number not in found and (key := cell.strip().casefold()):
                numbers.setdefault(key, []).append(number)
        wanted = [{key.strip().casefold() for key in keys(result)} - {""} for result in left]
        unmatched = []
        for at, result in enumerate(left):
            hits = {number for key in wanted[at] for number in numbers.get(key, [])}
            # Two people may share a name.
            shared = any(wanted[at] & other for to, other in enumerate(wanted) if to != at)
            if len(hits) == 1 and not (shared and hits & _hits(wanted, numbers, at)):
                found[hits.pop()] = result
            else:
                unmatched.append(result)
        left = unmatched
    return found


def _hits(wanted: Sequence[set[str]], numbers: Mapping[str, list[int]], but: int) -> set[int]:
    """Return the rows that other results would match, too."""
    others = (keys for at, keys in enumerate(wanted) if at != but)
    return {number for keys in others for key in keys for number in numbers.get(key, [])}


_ROUNDING = 1e-6
