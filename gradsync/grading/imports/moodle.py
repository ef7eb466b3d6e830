"""Read the names in a bulk download of Moodle: `Ada Lovelace_1234_assignsubmission_file_`.

These are folders, or, if the download has no folders, the beginnings of the files' names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from gradsync.grading.imports.handed_in import HandedIn, archive_or_files

NAME = re.compile(
    r"(?P<learner>[^_].*?)_(?P<id>\d+)_assignsubmission_(?P<kind>[a-z]+)(_(?P<file>.*))?", re.DOTALL
)


def handed_in(paths: Iterable[Path]) -> Iterator[HandedIn]:
    """Yield the submissions among these paths; skip other folders, such as online texts."""
    learners: dict[str, list[re.Match[str]]] = {}
    places = {path.name: path for path in paths}
    for found in filter(None, map(NAME.fullmatch, places)):
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


def is_other(name: str) -> bool:
    """Return whether a name belongs to something that Moodle adds, such as a comment."""
    found = NAME.fullmatch(name)
    return found is not None and found["kind"] != "file"


def _source(files: Mapping[str, Path]) -> Path | Mapping[str, Path]:
    folder = files.get("")
    if folder is None:
        return archive_or_files(files)
    if folder.is_symlink() or not folder.is_dir():
        return folder
    inside = archive_or_files({path.name: path for path in sorted(folder.iterdir())})
    return inside if isinstance(inside, Path) else folder
