"""Read a bulk download of Gradescope: folders, and `submission_metadata.yml`, which names people.

Gradescope writes the file with Ruby, so its keys begin with a colon. A group's submission counts
for each of its members.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from gradsync.grading.classes.tables import TableError
from gradsync.grading.imports.handed_in import HandedIn
from gradsync.text import listed

METADATA = "submission_metadata.yml"


def handed_in(folder: Path) -> Iterator[HandedIn]:
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


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast
