"""Write files atomically: a crash or a full disk leaves the previous file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file atomically; create its folder if it is missing.

    A killed process may leave `.NAME.01234567` beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_to_disk(temporary, content).replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_to_disk(path: Path, content: bytes) -> Path:
    """Write a file that survives a power cut, and return its path."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # otherwise a power cut may leave an empty file
    return path
