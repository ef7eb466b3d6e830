"""The submissions that a run is to grade, from the paths that a user named."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradsync.course.catalogue import Course
from gradsync.grading.classes.facts import Facts
from gradsync.grading.imports.attempts import Keep, attempts, by_name, found_at
from gradsync.grading.imports.handed_in import HandedIn
from gradsync.grading.output_files import folder_name
from gradsync.reports import gradebook
from gradsync.reports.text import carriable
from gradsync.submission import (
    Submission,
    SubmissionError,
    read_submission,
)


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

    `out` does not count, though it may be in a class. `command` followed by a path must grade the
    submission there. Of several attempts of a learner in downloads, the last one counts, or the
    one with the most points. Other submissions with the same name are numbered, unless `keep` is
    given: then they are attempts, too. `downloads` has, for paths that were unpacked, the
    archives that the user named; commands name these.

    Raises:
        SubmissionError: there is no submission at a path.
        TableError: the file of names in a download can't be read.
    """
    downloads = downloads or {}
    found = [
        replace(each, download=_archive(path, downloads))
        for path in paths
        for each in found_at(path, course)
    ]
    members = [each for each in found if not _is(each.source, out)]
    if not members:
        raise SubmissionError(
            f"There is no submission beside {out}, which is the folder for the grades."
        )
    names = _Names()
    entries = []
    for group in attempts(by_name(members) if keep else _once(members)):
        learner = names.free(carriable(group[-1].learner))
        for number, each in enumerate(group, 1):
            if keep == "best" or each is group[-1]:
                facts = _facts(each, learner, number, len(group))
                if keep == "best" and len(group) > 1:
                    facts = replace(facts, submission=names.free(f"{learner} (attempt {number})"))
                entries.append(Entry(_command(command, each), facts, each.source))
    return sorted(entries, key=lambda entry: entry.name)


def _archive(path: Path, downloads: Mapping[Path, Path]) -> Path | None:
    """Return the archive that was unpacked to a path, or None if the user named the path."""
    given = downloads.get(path, path)
    return None if given == path else given


def _facts(each: HandedIn, learner: str, number: int, count: int) -> Facts:
    return Facts(
        submission=learner,
        learner=learner,
        names=tuple(map(carriable, each.names)),
        handed_in=each.moment,
        attempt=number if count > 1 else None,
        attempts=count,
        notes=each.notes,
    )


def _once(members: Iterable[HandedIn]) -> Iterator[HandedIn]:
    """Yield the submissions; those that several paths lead to, once."""
    seen = set()
    for each in members:
        if not isinstance(each.source, Path) or (each.source, each.learner) not in seen:
            yield each
        if isinstance(each.source, Path):
            seen.add((each.source, each.learner))


def _is(source: Path | Mapping[str, Path], folder: Path) -> bool:
    return isinstance(source, Path) and source.resolve() == folder.resolve()


def _command(command: str, each: HandedIn) -> str:
    """Return the command that grades a submission; single files are not a submission's path."""
    path = each.source if isinstance(each.source, Path) else each.members[0].parent
    return f"{command} {shlex.quote(str(each.download or path))}"


class _Names:
    """The names of submissions so far, which must not share a folder or a line."""

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
