"""Read a newer release that a learner was given, to update their copy with it."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from gradsync.course.catalogue import MANIFEST
from gradsync.course.release.update import Change, decode, digest, read_manifest, update
from gradsync.errors import UnusableInput

MAX_FILE = 64 * 2**20  # bytes; the largest file of a release is the wheel
MAX_FILES = 10_000


def update_from(root: Path, release: Path) -> Change:
    """Bring a learner's copy of the course up to date; the files that they edited stay.

    Args:
        root: the learner's copy.
        release: the newer release: the .zip that teachers hand out, or its folder.

    Raises:
        UnusableInput: `root` is not a release, or `release` is none, or is damaged.
        OSError: a file can't be read or written.
    """
    before = read_manifest(root) if (root / MANIFEST).is_file() else None
    if before is None:
        raise UnusableInput(
            f"{root} is not a learner's copy that can be updated: it has no {MANIFEST}. Unpack "
            "the new release into a new folder, and copy your files there."
        )
    phases, files = _read_zip(release) if release.is_file() else _read_folder(release)
    return update(root, files, phases, before)


def _read_zip(path: Path) -> tuple[Sequence[str], Mapping[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            manifests = [name for name in members if PurePosixPath(name).name == MANIFEST]
            if len(manifests) != 1:
                raise _unusable(path, f"it has {len(manifests)} files {MANIFEST} instead of one")
            top = manifests[0].removesuffix(MANIFEST)

            def read(name: str) -> bytes:
                info = members[top + name]
                if info.file_size > MAX_FILE:
                    raise _unusable(path, f"{name} is too large")
                return archive.read(info)

            return _checked(path, read)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError) as problem:
        raise _unusable(path, str(problem)) from None


def _read_folder(path: Path) -> tuple[Sequence[str], Mapping[str, bytes]]:
    if not (path / MANIFEST).is_file():
        raise _unusable(path, f"it has no {MANIFEST}")
    return _checked(path, lambda name: (path / name).read_bytes())


def _checked(path: Path, read: Callable[[str], bytes]) -> tuple[Sequence[str], Mapping[str, bytes]]:
    """Return the phases and files of a release; each file must be the one that was released."""
    try:
        manifest = decode(read(MANIFEST))
    except ValueError as problem:
        raise _unusable(path, f"{MANIFEST} is damaged ({problem})") from None
    if len(manifest.files) > MAX_FILES:
        raise _unusable(path, "it has too many files")
    files = {}
    for name, versions in manifest.files.items():
        parts = PurePosixPath(name).parts
        if name.startswith("/") or "\\" in name or ".." in parts or not parts:
            raise _unusable(path, f"the name {name!r} leads out of it")
        try:
            files[name] = read(name)
        except (FileNotFoundError, KeyError):  # a file that an earlier release had
            continue
        if digest(files[name]) != versions[-1]:
            raise _unusable(path, f"{name} was changed")
    return manifest.phases, files


def _unusable(path: Path, why: str) -> UnusableInput:
    return UnusableInput(
        f"{path} is not an unchanged release of a course: {why}. Ask your teachers for the .zip "
        "of the release, and name it."
    )
