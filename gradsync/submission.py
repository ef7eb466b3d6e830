"""A learner's submission: the files that count, read by name from a folder or an archive.

Nothing of a submission is run or unpacked here: its files come into memory as bytes, those of the
contract's names alone, and what was missing or refused is noted.
"""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gradsync.course import Course

ARCHIVES = (".zip", ".tar.gz", ".tgz")
MAX_FILE = 2**20  # bytes of one source file


class SubmissionError(Exception):
    """A path that holds no submission at all."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What a learner handed in."""

    name: str
    files: Mapping[str, bytes]  # "phase1/template_trainer.py" -> its source
    notes: tuple[str, ...] = ()  # what was missing, ignored or refused, a line each


def find_submissions(path: Path, course: Course) -> list[Path]:
    """Return the submissions at `path`: itself, or, where it is a class, those in it.

    Raises:
        SubmissionError: there is nothing at `path`, or nothing in it that could be a submission.
    """
    if is_archive(path):
        return [path]
    if not path.is_dir():
        problem = "is no folder, .zip or .tar.gz" if path.exists() else "does not exist"
        raise SubmissionError(f"{path} {problem}. Name a submission, or a folder of submissions.")
    wanted = [_places(phase, file) for phase in course.phases for file in course.files(phase)]
    if any((path / place).exists() for places in wanted for place in places):
        return [path]
    members = sorted(p for p in path.iterdir() if p.is_dir() or is_archive(p))
    members = [p for p in members if not p.name.startswith((".", "__"))]
    if not members:
        expected = ", ".join(places[0] for places in wanted)
        raise SubmissionError(f"{path} holds no submission: none of {expected} is in it.")
    return members


def read_submission(
    path: Path, course: Course, name: str | None = None, phases: Sequence[str] | None = None
) -> Submission:
    """Read what counts of a submission; what can't be read becomes a note, never an exception.

    Args:
        path: a folder or an archive.
        course: whose files are looked for.
        name: of the submission; else its path's.
        phases: those that are asked for; else all.
    """
    name = name or submission_name(path)
    files: dict[str, bytes] = {}
    notes: list[str] = []
    missing: list[str] = []
    try:
        members, read = _open(path, course)
        for target, member in _found(members, course, phases or course.phases).items():
            if member is None:
                missing.append(target)
            elif (size := members[member]) > MAX_FILE:
                notes.append(f"refused: {target} has {size:,} bytes, {MAX_FILE:,} are allowed")
            else:
                files[target] = read(member)
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, tarfile.TarError) as e:
        return Submission(name, {}, (f"unreadable: {path.name} can't be read: {e}",))
    return Submission(name, files, (*_gaps(missing, files), *notes))


def _gaps(missing: Sequence[str], files: Mapping[str, bytes]) -> Iterator[str]:
    """Say which files are missing, and once where all of a phase are."""
    begun = {PurePosixPath(path).parts[0] for path in files}
    gaps = [path if (phase := path.partition("/")[0]) in begun else phase for path in missing]
    return (f"missing: {gap}" for gap in dict.fromkeys(gaps))


def is_archive(path: Path) -> bool:
    return path.is_file() and path.name.endswith(ARCHIVES)


def submission_name(path: Path) -> str:
    """Return the name under which a submission is graded: its file's, without the ending."""
    name = path.resolve().name
    for ending in ARCHIVES:
        if is_archive(path):
            name = name.removesuffix(ending)
    return name


def _places(phase: str, file: str) -> tuple[str, str]:
    """Return where a file of the contract may lie: in its phase's folder, or loose."""
    return f"{phase}/{file}", file


def _found(
    members: Mapping[str, int], course: Course, phases: Sequence[str]
) -> dict[str, str | None]:
    """Return the member that is each of the contract's files, if one is.

    They may lie in the archive's root or in its only folder. Phases share file names, so loose
    files are taken for those of the first phase that has all of their names.
    """
    tops = {PurePosixPath(member).parts[0] for member in members if member}
    top = f"{next(iter(tops))}/" if len(tops) == 1 else ""
    every = {file for phase in phases for file in course.files(phase)}
    loose = {file for file in every if {file, top + file} & members.keys()}
    owner = next((phase for phase in phases if loose <= set(course.files(phase))), phases[0])
    found: dict[str, str | None] = {}
    for phase in phases:
        for file in course.files(phase):
            inside, beside = _places(phase, file)
            places = [inside, top + inside, *([beside, top + beside] if phase == owner else [])]
            found[inside] = next((place for place in places if place in members), None)
    return found


def _open(path: Path, course: Course) -> tuple[dict[str, int], Callable[[str], bytes]]:
    """Return the regular files with their sizes, and how to read one."""
    if path.is_dir():
        wanted = [_places(phase, file) for phase in course.phases for file in course.files(phase)]
        found = {place: path / place for places in wanted for place in places}
        members = {
            n: p.stat().st_size for n, p in found.items() if p.is_file() and not p.is_symlink()
        }
        return members, lambda member: found[member].read_bytes()
    return _open_zip(path) if path.name.endswith(".zip") else _open_tar(path)


def _open_zip(path: Path) -> tuple[dict[str, int], Callable[[str], bytes]]:
    with zipfile.ZipFile(path) as archive:
        members = {i.filename: i.file_size for i in archive.infolist() if not i.is_dir()}

    def read(member: str) -> bytes:
        with zipfile.ZipFile(path) as archive, archive.open(member) as file:
            return file.read(MAX_FILE)

    return members, read


def _open_tar(path: Path) -> tuple[dict[str, int], Callable[[str], bytes]]:
    with tarfile.open(path, "r:gz") as archive:
        members = {m.name.removeprefix("./"): m.size for m in archive if m.isreg()}

    def read(member: str) -> bytes:
        with tarfile.open(path, "r:gz") as archive:
            names = {m.name.removeprefix("./"): m for m in archive if m.isreg()}
            file = archive.extractfile(names[member])
            return file.read(MAX_FILE) if file else b""

    return members, read
