"""Read a learner's submission: the files that count, from folders, archives and single files.

Nothing is run or unpacked here. Only files with the course's names are read, as bytes in memory.
Each note begins with its kind: "missing", "ignored" (harmless), "assumed" (read with a doubt),
"refused" (a file) or "unreadable" (the whole).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from gradsync.errors import UnusableInput
from gradsync.submission.archives import ENDINGS, archive_entries
from gradsync.submission.contents import (
    Candidate,
    Contents,
    Entry,
    Refused,
    Unreadable,
    listing,
    printed,
    refused_files,
)
from gradsync.submission.folders import file_entry, folder_entries
from gradsync.submission.places import SKIPPED, CourseLayout, Layout, is_entered, plain
from gradsync.text import counted, listed, verb

OTHER_KIND = "is not a folder, .zip or .tar.gz"
HAND_IN = ". Hand in the course's files, with the course's names, or one .zip of them"
RENAME = ". If these are the missing files, give them the course's names and folders"
STAFF_FILES = {"changes.csv", "course.toml", "gradebook.csv", "overrides.csv", "roster.csv"}
PACKED = (*ENDINGS, ".7z", ".bz2", ".gz", ".rar", ".tar", ".xz")
REPACK = ". Pack the files themselves as one .zip"
NO_NOTEBOOKS = (
    ". Notebooks don't count here: copy the functions and classes into the course's .py files, and "
    "hand these in. (For staff: `gradsync nbgrade` grades the notebooks of an nbgrader course)"
)


class CourseFiles(CourseLayout, Protocol):
    """The files that a learner hands in, and their course; a `Course` has these attributes."""

    @property
    def root(self) -> Path:
        """Return the folder of the course."""


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
    path: Path, course: CourseFiles, is_upload: Callable[[str], bool] = lambda _: False
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
        layout = Layout(course)
        try:
            if layout.has_files(_near(path, layout), at_top=True):
                _check_that_it_is_one(path, layout)
                return [path]
        except PermissionError:
            return [path]  # it gets a note
        with os.scandir(path) as items:
            members = sorted(Path(item.path) for item in items if _is_member(item))
    except (OSError, RuntimeError, ValueError) as problem:  # RuntimeError: links in a circle
        raise SubmissionError(f"{path} can't be read: {problem}") from None
    if not any(_may_be_submission(member) or is_upload(member.name) for member in members):
        files = (f"{phase}/{file}" for phase in course.phases for file in course.files(phase))
        expected = listed(files, "or")
        raise SubmissionError(
            f"There is no submission in {path}. Expected a folder or an archive with {expected}."
        )
    return members


def read_submission(
    path: Path | Mapping[str, Path],
    course: CourseFiles,
    name: str | None = None,
    phases: Sequence[str] | None = None,
) -> Submission:
    """Read the files of a submission that count; a note lists what can't be read.

    Args:
        path: a folder or an archive, not a link; or single files and archives by name, with a
            `name` for them. Of several files for the same place, the one that comes last counts.
        course: the course, which names the files.
        name: the name of the submission; by default the name of its file.
        phases: the phases to read; by default all.
    """
    if isinstance(path, Path):
        name, shown = name or submission_name(path), path.name
    else:
        name = shown = name or next(iter(path))
    wanted = tuple(phases or course.phases)
    contents = Contents(Layout(course))
    try:
        contents.take_all(_entries(path, contents.layout))
        if not contents.candidates and isinstance(path, Path) and not is_archive(path):
            contents.take_all(_packed(path, contents))
        found, doubts = contents.chosen(wanted)
    except Unreadable as problem:
        return Submission(name, {}, (f"unreadable: {printed(shown)}: {problem}",))
    except Refused as problem:
        return Submission(name, {}, (f"unreadable: {printed(shown)} {problem}",))
    if not found:
        what = _without_files(shown, contents, wanted)
        return Submission(name, {}, (f"unreadable: {what}",))
    sources = {
        f"{phase}/{file}": each.source
        for phase in wanted
        for file in course.files(phase)
        if (each := found.get(f"{phase}/{file}")) and each.source is not None
    }
    notes = [*_notes(contents, found, wanted), *doubts]
    if path == course.root:  # a learner's copy of the course has settings files
        notes = [note for note in notes if not note.startswith("ignored:")]
    return Submission(name, sources, tuple(notes), refused_files(found))


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


def _entries(path: Path | Mapping[str, Path], layout: Layout) -> Iterator[Entry]:
    """Yield the entries of a submission.

    Raises:
        Refused: it is neither a folder nor an archive.
    """
    if not isinstance(path, Path):
        for order, (name, each) in enumerate(path.items()):
            for entry in _part(name, each):
                yield replace(entry, order=order)
    elif is_archive(path):
        stem = submission_name(path)
        prefix = f"{stem}/" if layout.phase_in(stem) else ""  # "phase2.zip" without a folder
        yield from _prefixed(prefix, archive_entries(path))
    elif path.is_file() and not _may_be_submission(path):
        raise Refused(f"{OTHER_KIND}: pack the files again as a .zip")
    else:
        yield from folder_entries(path)


def _packed(folder: Path, contents: Contents) -> Iterator[Entry]:
    """Yield the entries of the archives that are directly in a folder."""
    for name in sorted(contents.others):
        if "/" not in name and is_archive(folder / name):
            contents.others.discard(name)
            yield from _part(name, folder / name)


def _part(name: str, path: Path) -> Iterator[Entry]:
    """Yield a single file of a submission, or the entries of an archive, below its name."""
    if not is_archive(Path(name)):
        yield file_entry(name, path)
        return
    stem = submission_name(Path("/nonexistent", name))
    folder = stem if is_entered(stem) else name  # "solutions.zip" is not the folder "solutions"
    try:
        yield from _prefixed(f"{folder}/", archive_entries(path))
    except Refused as why:
        raise Unreadable(f"{printed(name)} {why}") from None
    except Unreadable as why:
        raise Unreadable(f"{printed(name)}: {why}") from None


def _prefixed(prefix: str, entries: Iterable[Entry]) -> Iterator[Entry]:
    return (replace(each, name=prefix + each.name.removeprefix("./")) for each in entries)


def _near(folder: Path, layout: Layout) -> Iterator[str]:
    """Yield the names in a folder, and in its folders of phases."""
    with os.scandir(folder) as items:
        for item in items:
            yield item.name
            if layout.phase(item.name) and item.is_dir(follow_symlinks=False):
                files = layout.files(layout.phase(item.name))
                with suppress(OSError):  # if it can't be searched, it may have all files
                    files = tuple(path.name for path in Path(item.path).iterdir())
                yield from (f"{item.name}/{file}" for file in files)


def _check_that_it_is_one(folder: Path, layout: Layout) -> None:
    """Raise an error if files of the course lie loose in what looks like a class."""
    with os.scandir(folder) as items:
        entries = sorted(items, key=lambda item: item.name)
    loose = [e.name for e in entries if e.is_file() and layout.has_files([e.name])]
    others = [
        e.name
        for e in entries
        if e.is_dir(follow_symlinks=False)
        and not layout.phase(e.name)
        and e.name not in SKIPPED
        and layout.has_files(_near(Path(e.path), layout), at_top=True)
    ]
    if loose and len(others) > 1:
        raise SubmissionError(
            f"It is not clear whether {folder} is one submission or a class: {listing(loose)} "
            f"{verb(loose, 'lies', 'lie')} beside {counted(len(others), 'folder')} with such "
            f"files: {listing(others)}. Move the one or the others elsewhere."
        )


def _without_files(shown: str, contents: Contents, phases: Sequence[str]) -> str:
    """Return a text on a submission that has nothing to grade."""
    if contents.candidates:
        return (
            f"{printed(shown)} has no file of {listed(phases)}: it has "
            f"{listing(contents.candidates)}. Was another assignment handed in?"
        )
    others = {name for name in contents.others if not name.startswith(".")}
    holds = f"it has {listing(others)}" if others else "it is empty"
    advice = HAND_IN if others else ""
    if any(name.lower().endswith(".ipynb") for name in others):
        advice = NO_NOTEBOOKS
    elif any(name.lower().endswith(PACKED) for name in others):
        advice = REPACK
    elif contents.layout.has_files(re.split(r"[/\\]", name)[-1] for name in others):
        advice = ". Files in these folders are not read: pack the folders of the phases"
    return f"{printed(shown)} has none of the course's files: {holds}{advice}"


def _is_member(item: os.DirEntry[str]) -> bool:
    hidden = item.name.startswith((".", "__"))
    return not hidden and (item.is_dir(follow_symlinks=False) or item.name not in STAFF_FILES)


def _may_be_submission(path: Path) -> bool:
    return path.is_symlink() or path.is_dir() or is_archive(path)


def _notes(contents: Contents, found: Mapping[str, Candidate], phases: Sequence[str]) -> list[str]:
    """Return notes on missing, refused and ignored files, one line each."""
    files = [(phase, file) for phase in phases for file in contents.layout.files(phase)]
    begun = {phase for phase, file in files if f"{phase}/{file}" in found}
    missing = [(phase, file) for phase, file in files if f"{phase}/{file}" not in found]
    gaps = [f"{phase}/{file}" if phase in begun else phase for phase, file in missing]
    notes = [f"missing: {gap}" for gap in dict.fromkeys(gaps)]
    gone = {phase for phase, _ in missing}
    stems = (plain(file.removeprefix("template_").removesuffix(".py")) for _, file in missing)
    similar = f"({'|'.join(stems)}).*\\.py.*"
    packed = "|".join(map(re.escape, PACKED))
    told: set[str] = set()
    for ending, advice in (r"\.ipynb", NO_NOTEBOOKS), (packed, REPACK), (similar, RENAME):
        if missing and (others := contents.instead(gone, ending)):
            told |= others
            notes.append(f"refused: {listing(others)}{advice}")
    for refusal in dict.fromkeys(refused_files(found).values()):
        notes.append(f"refused: {refusal}")
    if meddlers := contents.meddlers({each.place.top for each in found.values()}) - told:
        notes.append(f"ignored: {listing(meddlers)} (only the course's files count)")
    archives = {name for name in contents.others if name.lower().endswith(PACKED)}
    if not missing and (archives := {name for name in archives if "/" not in name}):
        notes.append(f"ignored: {listing(archives)} (the files beside it count)")
    return notes
