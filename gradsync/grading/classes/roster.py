"""Read roster.csv, and find the person who handed in a submission."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from gradsync.class_records import Person
from gradsync.course.settings import local
from gradsync.grading.classes.tables import Row, read_table

COLUMNS = ("id", "name", "email")


class Roster:
    """The people of a class."""

    def __init__(self, people: Sequence[Person] = ()) -> None:
        self.people = people
        self._exact: dict[str, list[Person]] = {}
        self._similar: dict[str, list[Person]] = {}
        for person in people:
            for key in {person.id, person.email.lower(), person.email.lower().partition("@")[0]}:
                self._exact.setdefault(key, []).append(person)
            for key in _forms(person.name):
                self._similar.setdefault(key, []).append(person)

    def find(self, *names: str) -> Person | None:
        """Return the only person with one of these ids, addresses or names; earlier ones first.

        Spaces, case and accents in names do not matter, and the family name may come first.
        """
        for name in filter(None, names):
            for found in (
                self._exact.get(name) or self._exact.get(name.lower()),
                self._similar.get(_letters(name)),
            ):
                if found and len(found) == 1:
                    return found[0]
        return None


def read_roster(path: Path) -> Roster:
    """Return the people in a roster: `id,name,email`, and optionally `section,due,days`.

    Raises:
        TableError: the file can't be read, a value is not usable, or an id occurs twice.
    """
    people: dict[str, Person] = {}
    for row in read_table(path, COLUMNS):
        if not row["id"]:
            raise row.error("there is no id")
        if row["id"] in people:
            raise row.error(f"the id {row['id']!r} occurs a second time")
        people[row["id"]] = Person(
            id=row["id"],
            name=row["name"] or row["id"],
            email=row["email"],
            section=row["section"],
            due=_moment(row, "due"),
            days=row.number("days") if row["days"] else 0.0,
        )
    return Roster(tuple(people.values()))


def _moment(row: Row, column: str) -> datetime | None:
    if not row[column]:
        return None
    try:
        return local(datetime.fromisoformat(row[column].replace("Z", "+00:00")))
    except ValueError:
        raise row.error(
            f"{column} must be a time such as 2026-10-30 23:59, not {row[column]!r}"
        ) from None


def _forms(name: str) -> Iterable[str]:
    """Return a name as downloads may write it: "Ada Lovelace" is "adalovelace", "lovelaceada"."""
    family, comma, given = name.partition(",")
    words = f"{given} {family}".split() if comma else name.split()
    orders = [words, [*words[-1:], *words[:-1]], [*words[1:], *words[:1]]]
    return {_letters("".join(order)) for order in orders} - {""}


def _letters(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(character for character in plain if character.isalnum())
