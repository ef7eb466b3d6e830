"""Read the names in a bulk download of Canvas: `lovelaceada_LATE_1234_5678_solution-1.zip`.

The name of the learner, without spaces, is followed by the ids of the user and of the submission,
and by the name of the file. Canvas appends a number to the names of files that are handed in again.
The download has the last attempt of each learner only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from gradsync.grading.imports.handed_in import HandedIn, archive_or_files
from gradsync.submission import is_archive

NAME = re.compile(
    r"(?P<learner>[^_]+)_(?P<late>LATE_)?(?P<user>\d+)_(?P<upload>\d+)_(?P<file>.+)", re.DOTALL
)
AGAIN = re.compile(r"-(\d+)(?=(\.\w+)+$)")


def handed_in(paths: Iterable[Path]) -> Iterator[HandedIn]:
    """Yield the submissions among these paths; each has all files of a user."""
    users: dict[str, list[re.Match[str]]] = {}
    places = {path.name: path for path in paths}
    for found in filter(None, map(NAME.fullmatch, places)):
        users.setdefault(found["user"], []).append(found)
    for user, uploads in users.items():
        uploads.sort(key=lambda found: int(found["upload"]))
        files = {AGAIN.sub("", found["file"]): places[found[0]] for found in uploads}
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
