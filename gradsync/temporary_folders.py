"""Temporary folders that their owner removes, or the next grade if the owner was killed.

A killed grader can't remove its folders. So each grader locks its folders, and the system releases
the locks when the process ends. Each grader removes the folders that are not locked.
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
    """Write a submission's files to a private folder for the ranks, while the block runs."""
    _remove_abandoned()
    try:
        with own_folder() as folder:
            for name, source in files.items():
                target = folder / name
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(source)
            yield folder
    finally:
        _remove_abandoned()  # a worker of this grade may have been killed


@contextmanager
def own_folder() -> Iterator[Path]:
    """Create a private temporary folder that exists while the block runs."""
    folder, lock = _locked_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder() -> tuple[Path, int]:
    """Create a folder and lock it; retry if another grader removes it before it is locked."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        lock = _lock(folder)
        if lock is not None and folder.exists():
            return folder, lock
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        lock = _lock(folder)
        if lock is not None:
            if os.fstat(lock).st_uid == os.geteuid():
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder; return the descriptor that holds the lock, or None if it is locked."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
        else:
            return descriptor
    return None
