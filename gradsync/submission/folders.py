"""Read the entries of a folder without following links; only regular files are opened."""

from __future__ import annotations

import errno
import functools
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gradsync.submission.contents import FOLDER, MAX_FILE, Entry, Refused
from gradsync.submission.places import MAX_DEPTH, is_entered

KINDS = {
    stat.S_IFDIR: FOLDER,
    stat.S_IFLNK: "is a link",
    stat.S_IFIFO: "is a pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFBLK: "is a device",
    stat.S_IFCHR: "is a device",
}
MOST_LISTED = 2000  # entries of a subfolder; of a larger one, which has data, only more .py files
NO_LINK = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW


def kind_flaw(mode: int) -> str:
    """Return why something of this mode is not a regular file, or ""."""
    kind = stat.S_IFMT(mode)
    return "" if kind == stat.S_IFREG else KINDS.get(kind, "is not a regular file")


def open_regular(name: str | Path, folder: int | None = None) -> int:
    """Open a regular file for reading and return its descriptor.

    Its kind is checked before it is opened, because opening a device can do harm. It is checked
    again afterwards, because the file may have been replaced in between.

    Args:
        name: a path, or a name in `folder`.
        folder: the descriptor of an open folder.

    Raises:
        Refused: it is not a regular file, or can't be opened.
    """
    try:
        _refuse_flaws(os.stat(name, dir_fd=folder, follow_symlinks=False))
        file = os.open(name, NO_LINK | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=folder)
    except (OSError, ValueError) as problem:
        raise Refused(_why(problem)) from None
    try:
        _refuse_flaws(os.fstat(file))
    except Refused:
        os.close(file)
        raise
    return file


def folder_entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a folder, and of its subfolders that may have a learner's answers.

    Raises:
        Refused: it is not a folder, or can't be listed.
    """
    try:
        kind = kind_flaw(path.lstat().st_mode)
        if kind != FOLDER:
            raise Refused(kind or "is not a folder")
        root = os.open(path, NO_LINK | os.O_DIRECTORY)
    except (OSError, ValueError) as problem:
        raise Refused(_why(problem)) from None
    try:
        yield from _entries(root, "", 0)
    except OSError as problem:
        raise Refused(_why(problem)) from None
    finally:
        os.close(root)


def file_entry(name: str, path: Path) -> Entry:
    """Return a single file as an entry with this name."""
    try:
        found = path.lstat()
    except (OSError, ValueError) as problem:
        return Entry(name, 0, bytes, _why(problem))
    return Entry(name, found.st_size, functools.partial(_read, path, None), _flaw(found))


def _entries(folder: int, prefix: str, depth: int) -> Iterator[Entry]:
    inside, count = [], 0
    with os.scandir(folder) as listed:
        for count, item in enumerate(listed, 1):
            crowded = depth > 0 and count > MOST_LISTED
            if crowded and not item.name.endswith(".py"):
                continue
            name = prefix + item.name
            try:
                found = item.stat(follow_symlinks=False)
            except OSError as problem:
                yield Entry(name, 0, bytes, _why(problem))
                continue
            read = functools.partial(_read, item.name, folder)
            yield Entry(name, found.st_size, read, _flaw(found))
            if stat.S_ISDIR(found.st_mode) and is_entered(item.name):
                inside.append(item.name)
    entered = depth <= MAX_DEPTH and not (depth and count > MOST_LISTED)
    for name in inside if entered else ():
        yield from _inside(name, folder, prefix, depth)


def _inside(name: str, parent: int, prefix: str, depth: int) -> Iterator[Entry]:
    try:
        folder = os.open(name, NO_LINK | os.O_DIRECTORY, dir_fd=parent)
    except OSError as problem:
        yield Entry(prefix + name, 0, bytes, _why(problem))
        return
    try:
        yield from _entries(folder, f"{prefix}{name}/", depth + 1)
    finally:
        os.close(folder)


def _read(name: str | Path, folder: int | None) -> bytes:
    with open(open_regular(name, folder), "rb") as file:
        try:
            source = file.read(MAX_FILE + 1)
        except OSError as problem:
            raise Refused(_why(problem)) from None
    if len(source) > MAX_FILE:
        raise Refused(f"grew while it was read: it has more than {MAX_FILE:,} bytes")
    return source


def _refuse_flaws(found: os.stat_result) -> None:
    if flaw := _flaw(found):
        raise Refused(flaw)


def _flaw(found: os.stat_result) -> str:
    flaw = kind_flaw(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return f"{flaw}: replace it by the file that it points to"
    if not flaw and found.st_nlink > 1:
        return "is a hard link to another file: hand in a copy"
    return flaw


def _why(problem: OSError | ValueError) -> str:
    if isinstance(problem, OSError) and problem.errno in (errno.ELOOP, errno.ENOTDIR):
        return "is a link, or was replaced while it was read"
    reason = problem.strerror if isinstance(problem, OSError) else str(problem)
    return f"can't be read: {reason}"
