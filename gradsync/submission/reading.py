"""Read a learner's submission: the files that count, from a folder or an archive.

Nothing is run or unpacked here. Only files with the course's names are read, as bytes in memory.
Notes list the files that are missing, ignored or refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from gradsync.errors import UnusableInput
from gradsync.submission.archives import ENDINGS, archive_entries
from gradsync.submission.contents import Contents, Entry, Refused, Unreadable, listing, printed
from gradsync.submission.folders import file_entries, folder_entries
from gradsync.text import listed

OTHER_KIND = "is not a folder, .zip or .tar.gz"
STAFF_FILES = {"changes.csv", "course.toml", "gradebook.csv", "overrides.csv", "roster.csv"}
MISNAMED = 5  # at most this many notes on names that are almost right


class Layout(Protocol):
    """The files that a learner hands in; a `Course` has these attributes."""

    @property
    def root(self) -> Path:
        """Return the folder of the course."""

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the names of the phases' folders."""

    def files(self, phase: str) -> tuple[str, ...]:
        """Return the names of the files in a phase's folder."""


class SubmissionError(UnusableInput):
    """There is no submission at a path."""


@dataclass(frozen=True, slots=True)
class Submission:
    """The files of a submission that count, and notes on the others."""

    name: str
    files: Mapping[str, bytes]  # "phase1/template_trainer.py" -> its source
    notes: tuple[str, ...] = ()  # on missing, ignored and refused files, one line each
    refused: Mapping[str, str] = field(default_factory=dict)  # path of a course file -> why


def find_submissions(
    path: Path, course: Layout, is_upload: Callable[[str], bool] = lambda _: False
) -> list[Path]:
    """Return `path` itself if it is a submission, or else the submissions of the class in it.

    If `path` is a link, it is followed. Links in a class, and files of another kind such as a .rar,
    count as submissions that can't be read; files of the staff do not count. `is_upload` returns
    whether a single file in a class, given its name, is a part of a submission.

    Raises:
        SubmissionError: nothing at `path`, or in it, could be a submission.
    """
    try:
        path = path.resolve(strict=True) if path.is_symlink() else path
        if is_archive(path) and path.exists():
            return [path]
        if not path.is_dir():
            problem = OTHER_KIND if path.exists() else "does not exist"
            raise SubmissionError(
                f"{path} {problem}. Name a submission, or a folder of submissions."
            )
        wanted = [_places(phase, file) for phase in course.phases for file in course.files(phase)]
        if any(_may_be_there(path / place) for places in wanted for place in places):
            return [path]
        with os.scandir(path) as items:
            members = sorted(Path(item.path) for item in items if _is_member(item))
    except (OSError, RuntimeError, ValueError) as problem:  # RuntimeError: links in a circle
        raise SubmissionError(f"{path} can't be read: {problem}") from None
    if not any(_may_be_submission(member) or is_upload(member.name) for member in members):
        expected = listed((places[0] for places in wanted), "or")
        raise SubmissionError(
            f"There is no submission in {path}. Expected a folder or an archive with {expected}."
        )
    return members


def read_submission(
    path: Path | Mapping[str, Path],
    course: Layout,
    name: str | None = None,
    phases: Sequence[str] | None = None,
) -> Submission:
    """Read the files of a submission that count; a note lists what can't be read.

    Args:
        path: a folder or an archive, not a link; or single files by name, with a `name` for them.
        course: the course, which names the files.
        name: the name of the submission; by default the name of its file.
        phases: the phases to read; by default all.
    """
    if isinstance(path, Path):
        name, shown = name or submission_name(path), path.name
    else:
        name = shown = name or next(iter(path))
    files = {file for phase in course.phases for file in course.files(phase)}
    contents = Contents(phases=course.phases, wanted=files)
    try:
        contents.take_all(_entries(path, course))
        top = contents.folder()
    except Unreadable as problem:
        return Submission(name, {}, (f"unreadable: {printed(shown)}: {problem}",))
    except Refused as problem:
        return Submission(name, {}, (f"unreadable: {printed(shown)} {problem}",))
    if not (contents.sources or contents.refused or contents.misnamed()):
        holds = f"it has {listing(contents.others)}" if contents.others else "it is empty"
        archives = [each for each in contents.others if each.lower().endswith(ENDINGS)]
        if len(archives) > 1:
            holds += f". It is not known which of the {len(archives)} archives counts: keep one"
        what = f"{printed(shown)} has none of the course's files: {holds}"
        return Submission(name, {}, (f"unreadable: {what}",))
    found = _found(contents, top, course, phases or course.phases)
    sources = {
        target: contents.sources[member]
        for target, member in found.items()
        if member in contents.sources
    }
    notes = _notes(contents, top, found)
    if path == course.root:  # a learner's copy of the course has settings files
        notes = [note for note in notes if not note.startswith("ignored:")]
    return Submission(name, sources, tuple(notes), _refused(contents, found))


def is_archive(path: Path) -> bool:
    """Return whether a path has the name of an archive, and is not a folder."""
    return path.name.lower().endswith(ENDINGS) and (path.is_symlink() or not path.is_dir())


def submission_name(path: Path) -> str:
    """Return the name of a submission: the name of its file, without the extension."""
    name = path.name if path.is_symlink() else path.resolve().name
    if is_archive(path):
        ending = next(ending for ending in ENDINGS if name.lower().endswith(ending))
        name = name[: -len(ending)]
    return name


def _entries(path: Path | Mapping[str, Path], course: Layout) -> Iterator[Entry]:
    """Yield the entries of a submission.

    Raises:
        Refused: it is neither a folder nor an archive.
    """
    if not isinstance(path, Path):
        return file_entries(path)
    if is_archive(path):
        return archive_entries(path)
    if path.is_file() and not _may_be_submission(path):
        raise Refused(f"{OTHER_KIND}: pack the files again as a .zip")
    return folder_entries(path, course.phases)


def _places(phase: str, file: str) -> tuple[str, str]:
    """Return the places where a file of the course may be: in its phase's folder, or at the top."""
    return f"{phase}/{file}", file


def _may_be_there(path: Path) -> bool:
    try:
        path.lstat()
    except PermissionError:  # its folder can't be searched
        return True
    except OSError:
        return False
    return True


def _is_member(item: os.DirEntry[str]) -> bool:
    hidden = item.name.startswith((".", "__"))
    return not hidden and (item.is_dir(follow_symlinks=False) or item.name not in STAFF_FILES)


def _may_be_submission(path: Path) -> bool:
    return path.is_symlink() or path.is_dir() or is_archive(path)


def _found(
    contents: Contents, top: str, course: Layout, phases: Sequence[str]
) -> dict[str, str | None]:
    """Return the entry for each file of the course, or None.

    Phases share file names, so files at the top belong to the first phase that has all their names.
    """
    members = {*contents.sources, *contents.refused}
    every = {file for phase in phases for file in course.files(phase)}
    loose = {file for file in every if top + file in members}
    owner = next((phase for phase in phases if loose <= set(course.files(phase))), phases[0])
    found: dict[str, str | None] = {}
    for phase in phases:
        for file in course.files(phase):
            inside, beside = _places(phase, file)
            places = [top + inside, *([top + beside] if phase == owner else []), top + phase]
            found[inside] = next((place for place in places if place in members), None)
    return found


def _refused(contents: Contents, found: Mapping[str, str | None]) -> dict[str, str]:
    """Return, for each file of the course that was refused, the reason."""
    refused = {
        meant: f"{printed(name)} must be named exactly {meant}"
        for name, meant in contents.misnamed()
    }
    for target, member in found.items():
        if member in contents.refused:
            refused[target] = f"{printed(member)} {contents.refused[member]}"
    return refused


def _notes(contents: Contents, top: str, found: Mapping[str, str | None]) -> list[str]:
    """Return notes on missing, refused and ignored files, one line each."""
    begun = {PurePosixPath(target).parts[0] for target, member in found.items() if member}
    missing = [target for target, member in found.items() if member is None]
    gaps = [path if (phase := path.partition("/")[0]) in begun else phase for path in missing]
    notes = [f"missing: {gap}" for gap in dict.fromkeys(gaps)]
    for member in dict.fromkeys(found.values()):
        if member in contents.refused:
            notes.append(f"refused: {printed(member)} {contents.refused[member]}")
    for name, meant in contents.misnamed()[:MISNAMED]:
        notes.append(f"refused: {printed(name)} must be named exactly {printed(meant)}")
    if meddlers := contents.meddlers(top):
        notes.append(f"ignored: {listing(meddlers)} (only the course's files count)")
    return notes
