"""Temporary folders that go with their owner, or, where it was killed, with the next grade.

A grader that is killed can't clear up. So each holds a lock on its folders, which the system
releases however it ends, and each clears up the folders whose lock nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "gradsync-owned-"


@contextmanager
def unpacked(files: Mapping[str, bytes]) -> Iterator[Path]:
    """Write a submission's files to a private folder, for ranks to import, while the block runs."""
    _remove_abandoned()
    try:
        with own_folder() as folder:
            for name, source in files.items():
                target = folder / name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(source)
            yield folder
    finally:
        _remove_abandoned()  # by a worker of this grade that was killed before it knew its ranks


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make a private temporary folder, which is there while the block runs."""
    folder, lock = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    """Make a folder and lock it; another grader may just have taken it for an abandoned one."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(folder)
        if lock is not None and folder.exists():
            return folder, lock
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        _remove_if_abandoned(path)


def _remove_if_abandoned(folder: Path) -> None:
    lock = _lock(folder)
    if lock is not None:
        if os.fstat(lock).st_uid == os.geteuid():
            shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """Return a descriptor that holds the folder's lock; None where it can't be had."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
        else:
            return descriptor
    return None
