"""Where a file of a submission belongs, judged by its name alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

DRIVE = re.compile("[a-z]:", re.IGNORECASE)
MAX_DEPTH = 8  # folders around a phase's folder
# Folders whose files are not a learner's answers, even if they have the names of the course's.
SKIPPED = {"tests", "solutions", "node_modules", "site-packages"}
# What browsers and systems add to the name of a further copy: "x (1).py", "x copy.py", "x-1.py".
COPY = re.compile(r"(?i)(?: ?\(\d+\)| copy(?: \d+)?| - copy(?: \(\d+\))?| \d+|-\d+)$")
GAPS = re.compile(r"[ _-]+")


class CourseLayout(Protocol):
    """The files that a learner hands in; a `Course` has these attributes."""

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the names of the phases' folders."""

    def files(self, phase: str) -> tuple[str, ...]:
        """Return the names of the files in a phase's folder."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a file, or of a phase's folder."""

    top: str  # the folders around it, with a slash at the end: "ada/", or ""
    phase: str  # "phase1"; "" if the file is in no phase's folder
    file: str  # "template_trainer.py"; "" for the folder itself
    exact: bool  # the name is exactly the course's

    @property
    def depth(self) -> int:
        return self.top.count("/")


class Layout:
    """The names of a course's files and folders, and names that people's machines make of them."""

    def __init__(self, course: CourseLayout) -> None:
        self.phases = course.phases
        self._files: Mapping[str, tuple[str, ...]] = {p: course.files(p) for p in course.phases}
        every = [file for files in self._files.values() for file in files]
        self._by_stem = {plain(file.removesuffix(".py")): file for file in every}

    def files(self, phase: str) -> tuple[str, ...]:
        """Return the names of the files in a phase's folder."""
        return self._files[phase]

    def place(self, name: str) -> Place | None:
        """Return the place of a name in a folder or an archive, or None if it has none."""
        parts = name.replace("\\", "/").split("/")
        if len(parts) > MAX_DEPTH + 2 or not all(map(_is_harmless, parts)):
            return None
        *folders, last = parts
        if phase := self.phase(last):
            return self._place(folders, phase, "", last == phase and "\\" not in name)
        file = self._file(last)
        if not file:
            return None
        exact = last == file and "\\" not in name
        if folders and (phase := self.phase(folders[-1])):
            return self._place(folders[:-1], phase, file, exact and folders[-1] == phase)
        guessed = folders and self.phase_in(folders[-1])
        return self._place(folders, "", file, exact and not guessed)

    def has_files(self, names: Iterable[str], *, at_top: bool = False) -> bool:
        """Return whether one of these names is a file of the course.

        With `at_top`, it must be in no folder, or in its phase's alone.
        """
        places = (self.place(name) for name in names)
        return any(place and place.file and not (at_top and place.depth) for place in places)

    def phase(self, folder: str) -> str:
        """Return the phase that a folder's name means: "phase1" for "Phase 1"; or ""."""
        names = (plain(folder), plain(COPY.sub("", folder)))
        return next((name for name in names if name in self.phases), "")

    def phase_in(self, name: str) -> str:
        """Return the only phase that a name contains: "phase1" of "Phase1_solution"; or ""."""
        text = plain(name)
        found = [each for each in self.phases if re.search(rf"{re.escape(each)}(?!\d)", text)]
        return found[0] if len(found) == 1 else ""

    def _file(self, name: str) -> str:
        stem, dot, ending = name.casefold().removesuffix(".txt").rpartition(".")
        if not dot or ending != "py":
            return ""
        return self._by_stem.get(plain(stem)) or self._by_stem.get(plain(COPY.sub("", stem)), "")

    def _place(self, folders: Sequence[str], phase: str, file: str, exact: bool) -> Place | None:
        if SKIPPED & set(folders):
            return None
        return Place("".join(f"{folder}/" for folder in folders), phase, file, exact)


def plain(name: str) -> str:
    """Return a name without the differences that people's machines make."""
    return GAPS.sub("", name.casefold())


def is_entered(folder: str) -> bool:
    """Return whether a folder of this name may contain a learner's answers."""
    return _is_harmless(folder) and folder not in SKIPPED


def _is_harmless(part: str) -> bool:
    """Return whether a part of a path leads nowhere else, and is not hidden."""
    hidden = part.startswith((".", "__"))  # .git, __MACOSX, .. and ._template_trainer.py
    return bool(part) and not hidden and not DRIVE.fullmatch(part) and part.isprintable()
