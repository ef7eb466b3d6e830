"""Write a course's release, as a folder and as an archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradsync.course.catalogue import MANIFEST, Course, CourseError
from gradsync.course.release.contents import release_files
from gradsync.course.release.update import (
    Change,
    digest,
    manifest_text,
    read_manifest,
    update,
)
from gradsync.course.release.zips import zipped
from gradsync.course.whole_files import write_whole
from gradsync.errors import UnusableInput


@dataclass(frozen=True, slots=True)
class Published:
    """A written release."""

    phases: tuple[str, ...]
    count: int  # of its files
    change: Change
    archive: Path | None  # if one was written
    edited: tuple[str, ...] = ()  # files that staff edited in a copy by `gradsync start`


def publish(
    course: Course, out: Path, last: str | None, *, archive: bool, self_study: bool = False
) -> Published:
    """Write the learners' copy of a course to `out`, or update the one that is there.

    Args:
        course: the course with its solutions: a checkout, or a copy by `gradsync start`.
        out: the folder of the release.
        last: the last phase of the release, such as "phase1"; None takes all phases. Phases that
            are already in the folder are kept.
        archive: also write the release to `out`.zip, as a new learner gets it.
        self_study: add the solutions and the hidden tests.

    Raises:
        CourseError: this is a learners' copy, or a part of the course is missing.
        UnusableInput: `out` has other files, or is a release of the other kind.
        OSError: `out` can't be written to.
    """
    out = out.resolve()  # "new/../copy" is the copy, also while there is no folder "new"
    _check(course, out)
    before = read_manifest(out)
    released = before.files if before else ()
    if not self_study and any(path.startswith("solutions/") for path in released):
        raise UnusableInput(
            f"{out} is a copy for self-study, with solutions. To update it, add --self-study. For "
            "learners whose work is graded, choose another folder."
        )
    count = len(course.phases) if last is None else course.phases.index(last) + 1
    kept = (*course.phases[:count], *(before.phases if before else ()))
    phases = tuple(phase for phase in course.phases if phase in kept)
    files = release_files(course, phases, self_study=self_study)
    change = update(out, files, phases, before)
    written = None
    if archive:
        known = {path: [digest(content)] for path, content in files.items()}
        whole = files | {MANIFEST: manifest_text(phases, known).encode()}
        written = out.with_name(f"{out.name}.zip")
        named = {f"{out.name}/{path}": content for path, content in sorted(whole.items())}
        write_whole(written, zipped(named))
    return Published(phases, len(files), change, written, _edited(course, files))


def _edited(course: Course, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the files whose release differs because staff edited them in a copy of the course."""
    manifest = read_manifest(course.root) if course.is_release else None
    known = manifest.files if manifest else {}
    return tuple(
        path
        for path, content in files.items()
        if path in known
        and digest(content) not in known[path]
        and (course.root / path).is_file()
        and digest((course.root / path).read_bytes()) not in known[path]  # unlike its own README
    )


def _check(course: Course, out: Path) -> None:
    if course.is_release and not (course.root / "solutions").is_dir():
        raise CourseError(
            f"{course.root} is a learners' copy, without solutions. Run `gradsync release` in the "
            "folder of the complete course, such as `gradsync start` makes it."
        )
    target, root = out.resolve(), course.root.resolve()
    if target == root or root.is_relative_to(target):
        raise CourseError(
            f"{out} contains the course itself. Choose a different folder for the learners' copy."
        )
