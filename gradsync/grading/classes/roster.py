"""Read roster.csv, and find the person who handed in a submission."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from gradsync.class_records import Person
from gradsync.course.settings import local
from gradsync.grading.classes.tables import Row, TableError, read_table
from gradsync.grading.store import ROSTER
from gradsync.submission.contents import listing
from gradsync.text import counted, in_list, listed, verb

COLUMNS = ("id", "name", "email")
GRANTED = ("due", "days", "submission", "handed_in")  # what a teacher writes by hand


class Roster:
    """The people of a class."""

    def __init__(self, people: Sequence[Person] = ()) -> None:
        self.people = people
        self._exact: dict[str, list[Person]] = {}
        self._similar: dict[str, list[Person]] = {}
        for person in people:
            email = person.email.lower()
            for key in {person.id, email, email.partition("@")[0], person.submission}:
                self._exact.setdefault(key, []).append(person)
            for key in _forms(person.name):
                self._similar.setdefault(key, []).append(person)

    def find(self, *names: str) -> Person | None:
        """Return the person with these ids, addresses and names, or None if it is not certain.

        Spaces, case and accents in names do not matter, and the family name may come first. The
        one whom most of them mean is found. An id may be that of another person, because platforms
        have their own numbers: if an id and a name mean different people, the last one counts.
        """
        found = [people for people in self._found(names) if people]
        counts = Counter(person for people in found for person in people)
        most = max(counts.values(), default=0)
        for people in reversed(found):
            if likely := [person for person in people if counts[person] == most]:
                return likely[0] if len(likely) == 1 else None
        return None

    def called(self, name: str) -> list[Person]:
        """Return the people with this id, address or name."""
        return next(filter(None, self._found([name])), [])

    def sharing(self, *names: str) -> list[Person]:
        """Return the people who share the first of these names that several people have."""
        return next((found for found in self._found(names) if len(found) > 1), [])

    def _found(self, names: Iterable[str]) -> Iterator[list[Person]]:
        for name in filter(None, names):
            yield self._exact.get(name) or self._exact.get(name.lower()) or []
            yield self._similar.get(_letters(name)) or []


def roster_of(out: Path, given: Path | None = None) -> Roster:
    """Return the given roster, or else the one in a folder of grades, which may have none.

    Raises:
        TableError: as `read_roster`.
    """
    if given is None and not (out / ROSTER).exists():
        return Roster()
    return read_roster(given or out / ROSTER)


def replacement(given: Path, out: Path) -> str:
    """Return the text of a roster that is to replace the one in a folder of grades.

    Raises:
        TableError: as `read_roster`, or it lacks an extension or the like of that one.
    """
    people = {person.id: person for person in read_roster(given).people}
    for before in roster_of(out).people:
        now = people.get(before.id, before)
        lost = [name for name in GRANTED if getattr(before, name) and not getattr(now, name)]
        if lost:
            raise TableError(
                f"{given} does not have {listed(lost)} of {before.label}, but {out / ROSTER} has. "
                f"Leave out --roster to keep {out / ROSTER}, or write the same into {given}."
            )
    return given.read_bytes().decode("utf-8-sig")


def warnings_on(roster: Roster, learners: Mapping[str, Sequence[str]]) -> list[str]:
    """Return warnings on submissions that do not belong to exactly one person of a roster.

    Args:
        roster: the roster; if it is empty, there are no warnings.
        learners: for the name of each submission, the names that the roster may have for the
            learner, the most reliable first.
    """
    if not roster.people:
        return []
    warnings, unknown = [], []
    owned: dict[Person, list[str]] = {}
    for learner, names in learners.items():
        if person := roster.find(*names):
            owned.setdefault(person, []).append(learner)
        elif people := roster.sharing(*names):
            warnings.append(_shared_text(learner, names, people))
        else:
            unknown.append(learner)
    if unknown:
        warnings.append(
            f"{ROSTER} has no line for {counted(len(unknown), 'submission')}: {listing(unknown)}. "
            "Add the people by id, address or name."
        )
    return warnings + [
        f"{len(same)} submissions belong to {person.label} of {ROSTER}: "
        f"{listing(same)}. If they are from different people, correct the names in {ROSTER}."
        for person, same in owned.items()
        if len(same) > 1
    ]


def unknown_submission_text(name: str, lines: Sequence[int], roster: Roster) -> str:
    """Return a text on lines of a file that name an unknown submission, and what to do."""
    problem = f"there is no submission {name!r}. Copy the name from gradebook.csv or {ROSTER}."
    if people := roster.sharing(name):
        ids = listed((person.id for person in people), "or")
        problem = f"{name!r} may be {ids}. Write the id."
    return f"{verb(lines, 'line', 'lines')} {listed(sorted(lines))}: {problem}"


def _shared_text(learner: str, names: Sequence[str], people: Sequence[Person]) -> str:
    """Return a warning on a submission that may belong to several people, and what to do."""
    known = [name for name in names if name not in learner]
    called = f" ({in_list(known[0])} in the download)" if known else ""
    return (
        f"The submission {in_list(learner)}{called} may belong to {len(people)} people in "
        f"{ROSTER}: {listed((person.id for person in people), 'or')}. In {ROSTER}, write "
        f"{in_list(learner)} into the column `submission` of the right person."
    )


def read_roster(path: Path) -> Roster:
    """Return the people in a roster: `id,name,email`, and maybe further fields of `Person`.

    Raises:
        TableError: the file can't be read, a value is not usable, or an id occurs twice.
    """
    people: dict[str, Person] = {}
    for row in read_table(path, COLUMNS):
        if not row["id"]:
            raise row.error("the value of 'id' is missing")
        if row["id"] in people:
            raise row.error(f"the id {row['id']!r} occurs a second time")
        people[row["id"]] = Person(
            id=row["id"],
            name=row["name"] or row["id"],
            email=row["email"],
            section=row["section"],
            due=_moment(row, "due"),
            days=row.number("days") if row["days"] else 0.0,
            submission=row["submission"],
            handed_in=_moment(row, "handed_in"),
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
