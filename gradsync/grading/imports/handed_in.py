"""A learner's submission, as a download describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from gradsync.submission import is_archive


@dataclass(frozen=True, slots=True)
class HandedIn:
    """One submission of a download."""

    source: Path | Mapping[str, Path]  # a folder or an archive; or single files by name
    learner: str  # a name for the gradebook
    key: str = ""  # the same for all attempts of a learner; "": there is only this one
    names: tuple[str, ...] = ()  # ids, addresses or names that a roster may have for the learner
    moment: datetime | None = None  # when it was handed in, with a time zone
    attempt: int = 0  # larger for a later attempt; orders attempts without different times
    notes: tuple[str, ...] = ()
    members: tuple[Path, ...] = ()  # the files or folders of the download that it consists of
    is_alone: bool = True  # the path that the user named has no other submission
    named: Path = Path()  # the path that the user named


def archive_or_files(files: Mapping[str, Path]) -> Path | Mapping[str, Path]:
    """Return the archive among these files, or all of them if there is not exactly one."""
    archives = [path for path in files.values() if is_archive(path)]
    return archives[0] if len(archives) == 1 else files
