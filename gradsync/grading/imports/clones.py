"""Read when the last commit of a cloned repository was made.

A clone belongs to a learner, so its configuration could make git run programs. Therefore git reads
the clone's objects through a separate repository, which is empty and has no configuration.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

REFERENCE = re.compile(r"ref: (refs/[\w./+@-]+)")
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
COMMITTER = re.compile(rb"^committer .*> (\d{1,11}) [+-]\d{4}$", re.MULTILINE)
SMALL = 2**20  # bytes that are read of a file in a clone
SECONDS = 20.0  # for git to read one commit


def is_clone(path: Path) -> bool:
    """Return whether a folder is a clone of a repository."""
    git = path / ".git"
    return git.is_dir() and not git.is_symlink() and (git / "HEAD").is_file()


def commit_time(clone: Path) -> datetime | None:
    """Return the time of the commit that is checked out, or None if it can't be read.

    It is the time on the learner's computer, and not the time of the push.
    """
    commit = _commit(clone / ".git")
    if commit is None or shutil.which("git") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        content = _object(commit, (clone / ".git" / "objects").resolve(), Path(folder))
    found = COMMITTER.search(content.partition(b"\n\n")[0])
    return datetime.fromtimestamp(int(found[1]), timezone.utc) if found else None


def _object(commit: str, objects: Path, empty: Path) -> bytes:
    """Return the content of a commit; `empty` is a folder for the separate repository."""
    (empty / "objects").mkdir()
    (empty / "refs").mkdir()
    (empty / "HEAD").write_text("ref: refs/heads/main\n")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(empty),
        "GIT_DIR": str(empty),
        "GIT_OBJECT_DIRECTORY": str(objects),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_NO_LAZY_FETCH": "1",
    }
    try:
        return subprocess.run(
            ["git", "cat-file", "commit", commit],
            check=True,
            env=environment,
            cwd=empty,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return b""


def _commit(git: Path) -> str | None:
    """Return the id of the commit that is checked out."""
    head = _text(git / "HEAD").strip()
    if found := REFERENCE.fullmatch(head):
        name = found[1]
        if ".." in name:
            return None
        rows = (line.split(" ") for line in _text(git / "packed-refs").splitlines())
        packed = (row[0] for row in rows if row[1:] == [name])
        head = _text(git / name).strip() or next(packed, "")
    return head if COMMIT.fullmatch(head) else None


def _text(path: Path) -> str:
    """Return the content of a small regular file, or ""."""
    with suppress(OSError):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                return file.read(SMALL).decode("utf-8", "replace")
    return ""
