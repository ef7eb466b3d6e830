"""Write a release to a folder, and update it later without changing files that a learner edited.

A manifest in the folder has the digests of every version of each file that was released there. A
file with any other content was edited by a learner. New files are first written to a temporary
folder, so that a full disk leaves the release unchanged; then each is moved to its place.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from gradsync.course.catalogue import MANIFEST
from gradsync.course.whole_files import write_to_disk
from gradsync.errors import UnusableInput

STAGING = ".gradsync-release-"  # the beginning of the temporary folder's name
BESIDE = ".new"  # the extension of a new version beside an edited file
OWN = (".git", MANIFEST)  # a folder that has only these may become a release


@dataclass(frozen=True, slots=True)
class Manifest:
    """The phases of a release, and the digests of all versions of each of its files."""

    phases: tuple[str, ...]
    files: Mapping[str, Annotated[Sequence[str], msgspec.Meta(min_length=1)]]


@dataclass(frozen=True, slots=True)
class Change:
    """The changes of an update, as paths within the release."""

    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()  # edited, and the release has the same version as before
    beside: Mapping[str, str] = field(default_factory=dict)  # edited -> where its new version is
    kept_old: tuple[str, ...] = ()  # edited, and the release has no such file any more


def read_manifest(out: Path) -> Manifest | None:
    """Return the manifest of the release in a folder, or None if the folder has no files yet.

    Raises:
        UnusableInput: `out` is a file, has a damaged manifest, or has files but no manifest.
    """
    if out.exists() and not out.is_dir():
        raise UnusableInput(f"{out} is a file. Name a folder for the release.")
    try:
        return decode((out / MANIFEST).read_bytes())
    except FileNotFoundError:
        others = sorted(path.name for path in out.glob("*") if path.name not in OWN)
        if [name for name in others if not name.startswith(STAGING)]:
            raise UnusableInput(
                f"{out} has files that are not a release, such as {others[0]}. Choose an empty "
                "folder."
            ) from None
        return None
    except ValueError as problem:
        raise UnusableInput(
            f"{out / MANIFEST} is damaged ({problem}). It is needed to find edited files. "
            "Restore it, or choose an empty folder."
        ) from None


def decode(content: bytes) -> Manifest:
    """Return the manifest in a file.

    Raises:
        ValueError: it is damaged.
    """
    try:
        return msgspec.json.decode(content, type=Manifest)
    except msgspec.MsgspecError as problem:
        raise ValueError(str(problem)) from None


def update(
    out: Path, files: Mapping[str, bytes], phases: Sequence[str], before: Manifest | None
) -> Change:
    """Make `out` a release with these files; keep the files that a learner edited.

    Args:
        out: the folder; it need not exist.
        files: the content of each file, by path.
        phases: the phases in these files.
        before: the folder's manifest, from `read_manifest`.

    Raises:
        UnusableInput: a folder exists where the release needs a file, or the reverse.
        OSError: a file can't be written. Until all new files are on the disk, nothing is changed.
    """
    before = before or Manifest((), {})
    _check_places(out, files)
    change = _planned(out, files, before)
    targets = {path: path for path in (*change.added, *change.updated)} | dict(change.beside)
    known = {path: [*before.files.get(path, ()), digest(new)] for path, new in files.items()}
    known |= {path: list(before.files[path]) for path in (*change.removed, *change.kept_old)}
    manifest = manifest_text(phases, known)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=STAGING, dir=out) as name:
        staged = [
            (write_to_disk(Path(name) / str(number), files[path]), out / target)
            for number, (path, target) in enumerate(targets.items())
        ]
        written = write_to_disk(Path(name) / "manifest", manifest.encode())
        # First the manifest: if the next lines are interrupted, no released file looks edited.
        for source, target in [(written, out / MANIFEST), *staged]:
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
        for path in change.removed:
            _remove(out, path)
    return change


def manifest_text(phases: Sequence[str], files: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a manifest."""
    unique = {path: list(dict.fromkeys(digests)) for path, digests in sorted(files.items())}
    return json.dumps({"phases": list(phases), "files": unique}, indent=1) + "\n"


def digest(content: bytes) -> str:
    """Return the SHA-256 digest of a file's content, as in a manifest."""
    return hashlib.sha256(content).hexdigest()


def _check_places(out: Path, files: Mapping[str, bytes]) -> None:
    for path in files:
        if (out / path).is_dir():
            raise UnusableInput(f"{out / path} is a folder. The release needs its name for a file.")
        for folder in (out / path).parents:
            if folder.is_relative_to(out) and folder.exists() and not folder.is_dir():
                raise UnusableInput(f"{folder} is a file. The release needs its name for a folder.")


def _planned(out: Path, files: Mapping[str, bytes], before: Manifest) -> Change:
    added, updated, kept = [], [], []
    beside: dict[str, str] = {}
    for path, content in files.items():
        known, new = before.files.get(path, ()), digest(content)
        if not (out / path).is_file():
            added.append(path)
        elif (current := digest((out / path).read_bytes())) == new:
            continue
        elif current in known:
            updated.append(path)
        elif known and known[-1] == new:
            kept.append(path)
        else:
            beside[path] = _free(out, path, content)
    gone = [path for path in before.files if path not in files and (out / path).is_file()]
    edited = [path for path in gone if digest((out / path).read_bytes()) not in before.files[path]]
    removed = [path for path in gone if path not in edited]
    return Change(tuple(added), tuple(updated), tuple(removed), tuple(kept), beside, tuple(edited))


def _free(out: Path, path: str, content: bytes) -> str:
    """Return a path beside a file for its new version; a file with other content is not there."""
    endings = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    names = (f"{path}{BESIDE}{ending}" for ending in endings)
    return next(
        name for name in names if not (out / name).exists() or (out / name).read_bytes() == content
    )


def _remove(out: Path, path: str) -> None:
    (out / path).unlink()
    for folder in (out / path).parents:
        if folder == out or any(folder.iterdir()):
            break
        folder.rmdir()
