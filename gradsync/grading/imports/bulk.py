"""Unpack a download of a class that is one .zip; a zip with a single submission is not unpacked.

The names in the zip decide between the two. Files are unpacked into a temporary folder. Links are
replaced by links to a path that does not exist, names can't lead out of the folder, and the size of
all files is checked before the first one is written.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from gradsync.course.catalogue import Course
from gradsync.errors import UnusableInput
from gradsync.grading.imports import platforms
from gradsync.submission import SubmissionError, is_archive
from gradsync.submission.archives import BROKEN_ZIP, GuardedFile, zip_flaw, zip_name
from gradsync.submission.contents import FOLDER, MAX_FILE, Refused, Unreadable, printed
from gradsync.submission.folders import open_regular
from gradsync.submission.places import Layout
from gradsync.temporary_folders import own_folder
from gradsync.text import size_text

MAX_LIST = 64 * 2**20  # bytes of the zip's list of files
MAX_ENTRIES = 500_000
MAX_SIZE = 8 * 2**30  # bytes of all files that are unpacked
NOWHERE = "/nonexistent"  # the target of unpacked links, which are never followed
HINT = "Unpack it yourself, and name the folder."


@contextmanager
def unpacked(paths: Sequence[Path], course: Course) -> Iterator[dict[Path, Path]]:
    """Unpack the downloads among these paths while the block runs.

    Yields the paths to use, each with the path that the user named.

    Raises:
        SubmissionError: a download of a class can't be unpacked.
    """
    with ExitStack() as stack:
        found: dict[Path, Path] = {}
        for path in dict.fromkeys(paths):
            found[_opened(path, course, stack) or path] = path
        try:
            yield found
        except UnusableInput as problem:  # name the file as the user did
            text = str(problem)
            for used, named in found.items():
                text = text.replace(str(used), str(named))
            raise type(problem)(text) from None


def _opened(path: Path, course: Course, stack: ExitStack) -> Path | None:
    """Return the folder of a class that was in a zip, or None if it is not a zip of a class."""
    if not path.name.lower().endswith(".zip") or not path.is_file():
        return None
    try:
        file = stack.enter_context(_List(open_regular(path.resolve())))
        archive = stack.enter_context(zipfile.ZipFile(file))
    except (Refused, Unreadable, *BROKEN_ZIP):  # it is read as a submission, and gets a note
        return None
    members = [member for member in archive.infolist() if not _is_hidden(_name(member))]
    top = class_folder([_name(member) for member in members], course)
    if top is None:
        return None
    room = stack.enter_context(own_folder()) / path.name
    try:
        _check(members)
        for member in members:
            _unpack(archive, member, room)
    except (_Flaw, *BROKEN_ZIP) as problem:
        why = problem.strerror if isinstance(problem, OSError) else None
        raise SubmissionError(
            f"{path} is the download of a class, but it can't be unpacked: {why or problem}. {HINT}"
        ) from None
    return room / top


def class_folder(names: Sequence[str], course: Course) -> str | None:
    """Return the folder of a class in a zip with these names, "" if it is the zip itself.

    A class is a download of a known platform, or has at least two folders with the course's files,
    or archives. None means that the zip is a single submission.
    """
    if _is_class(names, course):
        return ""
    tops = {name.partition("/")[0] for name in names}
    top = next(iter(tops), "")
    inside = [name[len(top) + 1 :] for name in names]
    return top if len(tops) == 1 and _is_class([name for name in inside if name], course) else None


class _List(GuardedFile):
    longest = MAX_LIST


class _Flaw(Exception):  # noqa: N818 - not an error of the grader
    """The zip can't be unpacked; the message says why."""


def _is_class(names: Sequence[str], course: Course) -> bool:
    tops = {name.partition("/")[0] for name in names}
    layout = Layout(course)
    if any(map(_is_canvas, names)):
        return not layout.has_files(names, at_top=True)
    if any(platforms.MOODLE.fullmatch(top) for top in tops):
        return True
    if platforms.METADATA in names:
        return not layout.has_files(name for name in names if "/" not in name)
    if layout.has_files((name for name in names if name.count("/") < 2), at_top=True):
        return False
    folders = {
        top
        for top in tops
        if layout.has_files(name[len(top) + 1 :] for name in names if name.startswith(f"{top}/"))
    }
    return len(folders | {name for name in names if "/" not in name and _is_zipped(name)}) > 1


def _is_canvas(name: str) -> bool:
    is_work = name.endswith((".py", "_text.html", "_link.html")) or _is_zipped(name)
    return is_work and "/" not in name and platforms.CANVAS.fullmatch(name) is not None


def _is_zipped(name: str) -> bool:
    """Return whether a name has the extension of an archive."""
    return is_archive(Path("/nonexistent", name))


def _name(member: zipfile.ZipInfo) -> str:
    """Return the path of a file in the zip; programs on Windows may write backslashes."""
    return zip_name(member).replace("\\", "/")


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__")) and not name.startswith(("./", ".."))


def _check(members: Sequence[zipfile.ZipInfo]) -> None:
    """Raise _Flaw if there are too many files, a name is unsafe, or the files are too large."""
    if len(members) > MAX_ENTRIES:
        raise _Flaw(f"it has more than {MAX_ENTRIES:,} files")
    for member in members:
        name = _name(member)
        if name.startswith("/") or ".." in name.split("/") or "\0" in name:
            raise _Flaw(f"the name {printed(name)} leads out of its folder")
    size = sum(member.file_size for member in members if _is_needed(member))
    if size > MAX_SIZE:
        raise _Flaw(f"its files have {size_text(size)}, but the limit is {size_text(MAX_SIZE)}")


def _is_needed(member: zipfile.ZipInfo) -> bool:
    """Return whether the content can matter: larger files are refused without reading them."""
    path = PurePosixPath(_name(member))
    return member.file_size <= MAX_FILE or _is_zipped(path.name) or ".git" in path.parts


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, room: Path) -> None:
    name = _name(member)
    target, flaw = room / name, zip_flaw(member)
    if flaw == FOLDER:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target):
        raise _Flaw(f"{printed(name)} occurs more than once")
    if flaw == "is a link":
        target.symlink_to(NOWHERE)
    elif flaw:
        raise _Flaw(f"{printed(name)} {flaw}")
    else:
        with target.open("xb") as copy:
            if _is_needed(member):
                with archive.open(member) as content:
                    shutil.copyfileobj(content, copy)
            else:
                copy.truncate(min(member.file_size, 2**40))  # takes no space
