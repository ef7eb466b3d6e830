"""The submissions that a run is to grade, from the paths that a user named."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradsync.course.catalogue import Course
from gradsync.grading.classes.facts import Facts
from gradsync.grading.output_files import folder_name
from gradsync.reports import gradebook
from gradsync.reports.text import carriable
from gradsync.submission import (
    Submission,
    SubmissionError,
    find_submissions,
    read_submission,
    submission_name,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A submission to grade; its files are read when they are needed."""

    command: str  # repeats the grade if a seed is appended
    facts: Facts
    source: Path | Submission

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


def entries_at(paths: Sequence[Path], course: Course, out: Path, command: str) -> list[Entry]:
    """Return the submissions at these paths; a path may be a class of several submissions.

    A number is added to names that occur twice. `out` does not count, though it may be in a class.
    `command` followed by a path must grade the submission there.

    Raises:
        SubmissionError: there is no submission at a path.
    """
    found = [member for path in paths for member in find_submissions(path, course)]
    members = [path for path in dict.fromkeys(found) if path.resolve() != out.resolve()]
    if not members:
        raise SubmissionError(
            f"There is no submission beside {out}, which is the folder for the grades."
        )
    return [
        Entry(f"{command} {shlex.quote(str(path))}", Facts(name, name), path)
        for path, name in _unique_names(members).items()
    ]


def _unique_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Return a name for each path; a number is added to names that would share a folder."""
    names: dict[Path, str] = {}
    taken: set[str] = set()
    for path in paths:
        name = plain = carriable(submission_name(path))
        count = 1
        while taken & {folder_name(name), gradebook.cell(name)}:
            count += 1
            name = f"{plain}-{count}"
        names[path] = name
        taken |= {folder_name(name), gradebook.cell(name)}
    return names
