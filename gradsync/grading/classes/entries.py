"""The submissions that a run is to grade, from the paths that a user named."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from gradsync.class_records import Facts
from gradsync.course.catalogue import Course
from gradsync.grading.classes.roster import Roster, roster_of
from gradsync.grading.imports.attempts import Keep, attempts, found_at
from gradsync.grading.imports.platforms import HandedIn
from gradsync.grading.store import STATE, folder_name
from gradsync.reports import gradebook
from gradsync.reports.text import carriable
from gradsync.submission import (
    Submission,
    SubmissionError,
    read_submission,
)
from gradsync.text import in_list, listed, verb


@dataclass(frozen=True, slots=True)
class Entry:
    """A submission to grade; its files are read when they are needed."""

    command: str  # repeats the grade if a seed is appended
    facts: Facts
    source: Path | Mapping[str, Path] | Submission

    @property
    def name(self) -> str:
        return self.facts.submission

    def submission(self, course: Course, phases: Sequence[str]) -> Submission:
        """Return the submission with its files."""
        if isinstance(self.source, Submission):
            return self.source
        return read_submission(self.source, course, self.name, phases)


def entry_of(submission: Submission, command: str) -> Entry:
    """Return the entry of a submission that is in memory."""
    return Entry(command, Facts(submission.name, submission.name), submission)


def entries_at(
    paths: Sequence[Path],
    course: Course,
    out: Path,
    command: str,
    keep: Keep | None = None,
    downloads: Mapping[Path, Path] | None = None,
) -> list[Entry]:
    """Return the submissions at these paths; a path may be a class, or a download of one.

    `command` followed by a path must grade the submissions at
    that path. Of several attempts of a learner in downloads, the last one counts, or the one with
    the most points. Other submissions with the same name are numbered, unless `keep` is given:
    then they are attempts, too. `downloads` maps each unpacked path to the archive that the user
    named; commands name the archive.

    Raises:
        SubmissionError: there is no submission at a path, or `out` is in a class.
        TableError: the file of names in a download can't be read.
    """
    named = {path: (downloads or {}).get(path, path) for path in paths}
    members = [each for path in named for each in _members(path, named[path], course, out)]
    names = _Names()
    entries = []
    for group in attempts(members if keep else _once(members), by_name=keep is not None):
        plain = carriable(group[-1].facts.learner)
        learner = names.free(plain)
        again = f"{command} {_source(learner, group if learner == plain else members)}"
        for number, each in enumerate(group, 1):
            if keep == "best" or each is group[-1]:
                facts = _facts(each, learner, number, len(group))
                if keep == "best" and len(group) > 1:
                    facts = replace(facts, submission=names.free(f"{learner} (attempt {number})"))
                entries.append(Entry(again, facts, each.source))
    return sorted(entries, key=lambda entry: entry.name)


def only_of(
    entries: Sequence[Entry], names: Sequence[str], out: Path, roster: Path | None = None
) -> list[Entry]:
    """Return the submissions of these learners, with all their attempts; all if no name is given.

    Args:
        entries: the submissions of the class.
        names: names of submissions; or ids, addresses or names of learners, as in the download or
            in the roster.
        out: the folder for the grades, which may have a roster of an earlier run.
        roster: the roster, if one is given.

    Raises:
        SubmissionError: a name does not belong to exactly one learner with a submission.
        TableError: the roster can't be used.
    """
    if not names:
        return list(entries)
    known = roster_of(out, roster)
    wanted = set()
    for name in names:
        learners = _learners_called(name, entries, known)
        if len(learners) != 1:
            raise SubmissionError(f"--only {in_list(name)}: {_why(name, learners, entries, known)}")
        wanted |= learners
    return [each for each in entries if each.facts.learner in wanted]


def _learners_called(name: str, entries: Sequence[Entry], roster: Roster) -> set[str]:
    """Return the learners whom a name may mean; the names in the gradebook come first."""
    exact = {
        each.facts.learner
        for each in entries
        for own in (each.name, each.facts.learner)
        if name in (own, gradebook.cell(own))
    }
    if exact:
        return exact
    people = roster.called(name)
    return {
        each.facts.learner
        for each in entries
        if name.casefold() in map(str.casefold, each.facts.names)
        or roster.find(*each.facts.names, each.facts.learner) in people
    }


def _why(name: str, learners: set[str], entries: Sequence[Entry], roster: Roster) -> str:
    """Return why a name does not select exactly one learner, and what to do."""
    if learners:
        choice = listed(map(in_list, sorted(learners)), "or")
        return f"{len(learners)} learners have this name. Choose {choice}."
    if people := roster.called(name):
        who = listed(person.label for person in people)
        text = f"{who} {verb(people, 'is', 'are')} on the roster, but not in these submissions."
        of_several = (
            each.facts.learner
            for each in entries
            if set(people) & set(roster.sharing(*each.facts.names, each.facts.learner))
        )
        return f"{text}{_suggestion(next(of_several, ''))}"
    known = {own: each.facts.learner for each in entries for own in each.facts.names}
    known |= {each.facts.learner: each.facts.learner for each in entries}
    close = next(iter(get_close_matches(name, known, n=1)), "")
    return (
        f"no submission has this name.{_suggestion(known.get(close, ''))} Use a name from "
        "gradebook.csv, from the download or from the roster."
    )


def _suggestion(learner: str) -> str:
    return f" Did you mean {in_list(learner)}?" if learner else ""


def _source(learner: str, members: Sequence[HandedIn]) -> str:
    """Return the arguments that select a learner among these submissions, quoted for a shell."""
    paths = shlex.join(str(path) for path in dict.fromkeys(each.named for each in members))
    is_alone = all(each.is_alone for each in members) and len(members) == 1
    return paths if is_alone else f"--only {shlex.quote(learner)} {paths}"


def _members(path: Path, named: Path, course: Course, out: Path) -> list[HandedIn]:
    if (path / STATE).is_file():
        raise SubmissionError(
            f"{path} is a folder of grades: name the folder of the submissions, or the download "
            "that you graded."
        )
    members = found_at(path, course)
    is_class = not (len(members) == 1 and members[0].source == path)
    folder, place = path.resolve(), out.resolve()
    if place == folder or (is_class and place.is_relative_to(folder)):
        beside = shlex.quote(str(named.parent / f"{named.name or 'class'}-grades"))
        raise SubmissionError(
            f"{out} is in the folder of the submissions, so it would be taken for one. Choose a "
            f"folder outside of it, for example --out {beside}."
        )
    return [replace(each, is_alone=len(members) == 1, named=named) for each in members]


def _facts(each: HandedIn, learner: str, number: int, count: int) -> Facts:
    return replace(
        each.facts,
        submission=learner,
        learner=learner,
        names=tuple(map(carriable, each.facts.names)),
        attempt=number if count > 1 else None,
        attempts=count,
        uploads=tuple(carriable(path.name) for path in each.members),
    )


def _once(members: Iterable[HandedIn]) -> Iterator[HandedIn]:
    """Yield each submission once, even if several paths lead to it."""
    seen: set[object] = set()
    for each in members:
        place = (each.source, each.facts.learner) if isinstance(each.source, Path) else object()
        if place not in seen:
            yield each
        seen.add(place)


class _Names:
    """The names of submissions so far; each needs its own folder and line in the gradebook."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def free(self, plain: str) -> str:
        """Return a name, with a number if it is taken."""
        name, count = plain, 1
        while self._taken & {folder_name(name), gradebook.cell(name)}:
            count += 1
            name = f"{plain}-{count}"
        self._taken |= {folder_name(name), gradebook.cell(name)}
        return name
