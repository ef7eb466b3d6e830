"""Read submissions from the downloads of Canvas, Moodle and Gradescope.

Canvas names files as in `lovelaceada_LATE_1234_5678_solution-1.zip`: the name of the learner,
without spaces, is followed by the ids of the user and of the submission, and by the name of the
file. Canvas appends a number to the names of files that are handed in again. The download has the
last attempt of each learner only.

Moodle names folders as in `Ada Lovelace_1234_assignsubmission_file_`, or, if the download has no
folders, begins the files' names like this.

Gradescope has folders, and `submission_metadata.yml`, which names people. It writes the file with
Ruby, so its keys begin with a colon. A group's submission counts for each of its members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from gradsync.grading.classes.tables import TableError
from gradsync.submission import is_archive
from gradsync.text import listed

CANVAS = re.compile(
    r"(?P<learner>[^_]+)_(?P<late>LATE_)?(?P<user>\d+)_(?P<upload>\d+)_(?P<file>.+)", re.DOTALL
)
AGAIN = re.compile(r"-(\d+)(?=(\.\w+)+$)")
MOODLE = re.compile(
    r"(?P<learner>[^_].*?)_(?P<id>\d+)_assignsubmission_(?P<kind>[a-z]+)(_(?P<file>.*))?", re.DOTALL
)
METADATA = "submission_metadata.yml"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast


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


def from_canvas(paths: Iterable[Path]) -> Iterator[HandedIn]:
    """Yield the submissions among these paths; each has all files of a user."""
    users: dict[str, list[re.Match[str]]] = {}
    places = {path.name: path for path in paths}
    for found in filter(None, map(CANVAS.fullmatch, places)):
        users.setdefault(found["user"], []).append(found)
    for user, uploads in users.items():
        uploads.sort(key=lambda found: int(found["upload"]))
        files: dict[str, Path] = {}
        for found in uploads:
            name = AGAIN.sub("", found["file"])
            files.pop(name, None)  # so that the files are in the order of their last uploads
            files[name] = places[found[0]]
        learner = uploads[-1]["learner"]
        archives = [name for name, path in files.items() if is_archive(path)]
        notes = ["Canvas marks it as late"] * (uploads[-1]["late"] is not None)
        if len(archives) > 1:  # the one with the largest number was uploaded last
            notes.append(f"of {len(archives)} archives, only the last one counts: {archives[-1]}")
            files = {archives[-1]: files[archives[-1]]}
        yield HandedIn(
            source=archive_or_files(files),
            learner=learner,
            key=user,
            names=(user, learner),
            attempt=int(uploads[-1]["upload"]),
            notes=tuple(notes),
            members=tuple(places[found[0]] for found in uploads),
        )


def from_moodle(paths: Iterable[Path]) -> Iterator[HandedIn]:
    """Yield the submissions among these paths; skip other folders, such as online texts."""
    learners: dict[str, list[re.Match[str]]] = {}
    places = {path.name: path for path in paths}
    for found in filter(None, map(MOODLE.fullmatch, places)):
        if found["kind"] == "file":
            learners.setdefault(found["id"], []).append(found)
    for number, uploads in learners.items():
        learner = uploads[0]["learner"]
        yield HandedIn(
            source=_source({found["file"] or "": places[found[0]] for found in uploads}),
            learner=learner,
            key=number,
            names=(number, learner),
            members=tuple(places[found[0]] for found in uploads),
        )


def is_other_of_moodle(name: str) -> bool:
    """Return whether a name belongs to something that Moodle adds, such as a comment."""
    found = MOODLE.fullmatch(name)
    return found is not None and found["kind"] != "file"


def _source(files: Mapping[str, Path]) -> Path | Mapping[str, Path]:
    folder = files.get("")
    if folder is None:
        return archive_or_files(files)
    if folder.is_symlink() or not folder.is_dir():
        return folder
    inside = archive_or_files({path.name: path for path in sorted(folder.iterdir())})
    return inside if isinstance(inside, Path) else folder


def from_gradescope(folder: Path) -> Iterator[HandedIn]:
    """Yield the submissions of a folder that has the file of names.

    Raises:
        TableError: the file can't be read.
    """
    path = folder / METADATA
    try:
        content = yaml.load(path.read_bytes(), Loader=LOADER)
        for name, row in content.items():
            if (folder / str(name)).exists():
                yield from _of_members(folder / str(name), row)
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as problem:
        raise TableError(f"{path} can't be read as Gradescope's file of names: {problem}") from None


def _of_members(source: Path, row: dict[str, Any]) -> Iterator[HandedIn]:
    members = row.get(":submitters") or [{":name": source.name}]
    moment = row.get(":created_at")
    names = [str(member.get(":name") or source.name) for member in members]
    for name, member in zip(names, members, strict=True):
        known = [str(member[key]) for key in (":sid", ":email") if member.get(key)]
        yield HandedIn(
            source=source,
            learner=name,
            key=next(iter(known), name),
            names=(*known, name),
            moment=_in_utc(moment) if isinstance(moment, datetime) else None,
            notes=(f"handed in by {listed(names)}",) if len(names) > 1 else (),
        )


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
