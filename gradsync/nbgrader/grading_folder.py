"""The folder beside an nbgrader gradebook that keeps seeds and marks for the next run."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from gradsync.grading.classes.grade_class import FolderInUse
from gradsync.grading.grade import draw_seed
from gradsync.grading.output_files import folder_name, write_whole
from gradsync.nbgrader import marks
from gradsync.nbgrader.marks import Marks
from gradsync.records import Origin

HIDDEN = ".gradsync"
SEED, LOCK, DONE = "seed.json", "lock", "autograded.json"
HALF_WRITTEN = f"**/.*.json.{'[0-9a-f]' * 8}"  # files that a killed process left


@dataclass(frozen=True, slots=True)
class GradingFolder:
    """The folder of one assignment. Learners must not be able to write to it."""

    root: Path

    @classmethod
    def of(cls, course_folder: Path, assignment: str) -> GradingFolder:
        """Return the folder of an assignment of an nbgrader course; it need not exist."""
        return cls(course_folder / HIDDEN / folder_name(assignment))

    def seed(self, given: int | None = None) -> int:
        """Return the assignment's seed: the given one, else the kept one, else a new one.

        Raises:
            OSError: the folder is not writable, or its seed file is damaged.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / SEED
        if given is not None:
            write_whole(path, json.dumps({"seed": given}) + "\n")
            return given
        kept = _kept_seed(path)
        if kept is not None:
            return kept
        drawn = path.with_name(f".{SEED}.{secrets.token_hex(4)}")
        drawn.write_text(json.dumps({"seed": draw_seed()}) + "\n", encoding="utf-8")
        try:
            with suppress(FileExistsError):
                # The first process decides, because several may run at the same time.
                os.link(drawn, path)
        finally:
            drawn.unlink()
        kept = _kept_seed(path)
        if kept is None:
            raise OSError(f"{path} does not contain a seed. Delete it")
        return kept

    def read(self, student: str, name: str, origin: Origin, seed: int) -> Marks | None:
        """Return the kept marks of a notebook if they have this origin and seed, else None."""
        text = _text(self._place(student, name))
        return None if text is None else marks.read(text, origin, seed)

    def write(self, student: str, name: str, made: Marks, origin: Origin, seed: int) -> None:
        """Keep the marks of a notebook."""
        self._write(self._place(student, name), marks.render(made, origin, seed))

    def is_done(self, student: str, digest: str) -> bool:
        """Check whether nbgrader has autograded the submission that has this digest."""
        return _text(self._folder(student) / DONE) == digest

    def set_done(self, student: str, digest: str) -> None:
        """Record the digest of the submission that nbgrader has autograded; "" for none."""
        self._write(self._folder(student) / DONE, digest)

    def remove_leftovers(self) -> None:
        """Remove partly written files of a killed process; no other process may be writing here."""
        for path in self.root.glob(HALF_WRITTEN):
            path.unlink()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other runs of `gradsync nbgrade` while the block runs.

        Raises:
            FolderInUse: another run has the folder locked.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.root / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise FolderInUse(
                f"Another `gradsync nbgrade` is running in {self.root}. Wait until it has finished."
            ) from None
        try:
            yield
        finally:
            lock.release()

    def _folder(self, student: str) -> Path:
        return self.root / "learners" / folder_name(student)

    def _place(self, student: str, name: str) -> Path:
        return self._folder(student) / f"{folder_name(name)}.json"

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _kept_seed(path: Path) -> int | None:
    try:
        seed = json.loads(path.read_text(encoding="utf-8"))["seed"]
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError):
        return None
    return seed if type(seed) is int and seed >= 0 else None
