"""The course on disk: its folder, phases, exercises and test suites."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from gradsync.errors import UnusableInput
from gradsync.ranks.protocol.user_files import CARRIED, PACKAGE
from gradsync.records import FIRST_PHASE
from gradsync.text import listed

Audience = Literal["visible", "hidden"]
EXERCISES_FILE = "exercises.toml"
MANIFEST = ".gradsync-release.json"  # in a learner's copy
LEARNERS = (
    "These tests give the points, and are not part of a learner's copy. Run `gradsync check` to "
    "test your work with the visible tests."
)


class CourseError(UnusableInput):
    """The course, or the requested part of it, does not exist or can't be read."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """A function or class that a learner writes, with its hints."""

    id: str  # "phase1/NAME"
    name: str
    file: str  # "template_trainer.py"
    guide: str  # a heading of GUIDELINES.md
    goal: str
    hints: tuple[str, ...]
    needs: tuple[str, ...] = ()  # ids of the exercises that it builds on
    notebook: str | None = None  # "notebooks/02_splitting_data.ipynb", the lesson before it

    @property
    def phase(self) -> str:
        return self.id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Course:
    """A course folder: each phase is a folder with a file `exercises.toml`, the first is phase1."""

    root: Path

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the phases that have exercises, in order."""
        names = [p.parent.name for p in self.root.glob(f"phase*/{EXERCISES_FILE}")]
        return tuple(sorted(names, key=lambda name: (len(name), name)))  # phase10 after phase9

    def phase(self, number: str) -> str:
        """Return the phase with a number that a user typed: "phase2" for "2" or "phase2".

        Raises:
            CourseError: the course has no such phase.
        """
        name = f"phase{number.removeprefix('phase')}"
        if name not in self.phases:
            numbers = [phase.removeprefix("phase") for phase in self.phases]
            raise CourseError(
                f"This course has no phase {number!r}. Choose --phase {listed(numbers, 'or')}."
            )
        return name

    def exercises(self, phase: str) -> tuple[Exercise, ...]:
        """Return a phase's exercises in the order in which they build on each other."""
        path = self.root / phase / EXERCISES_FILE
        try:
            return _exercises(phase, path.read_text(encoding="utf-8"))
        except (OSError, KeyError, TypeError, ValueError) as problem:
            raise CourseError(f"{path} can't be read as a list of exercises: {problem}.") from None

    def files(self, phase: str) -> tuple[str, ...]:
        """Return the names of the files that a learner fills in."""
        return tuple(dict.fromkeys(exercise.file for exercise in self.exercises(phase)))

    def given(self, phase: str) -> tuple[str, ...]:
        """Return the names of the Python files that learners get complete, beside the templates."""
        return tuple(self._settings(phase).get("given", ()))

    def training(self, phase: str) -> dict[str, Any]:
        """Return the phase's own defaults of `gradsync train`, such as `{"epochs": 2}`."""
        return dict(self._settings(phase).get("training", {}))

    def _settings(self, phase: str) -> dict[str, Any]:
        """Return the list of exercises with its settings, the keys above it."""
        try:
            return read_toml(self.root / phase / EXERCISES_FILE)
        except (OSError, ValueError) as problem:
            raise CourseError(f"{self.root / phase / EXERCISES_FILE}: {problem}.") from None

    def find(self, name: str) -> Exercise:
        """Return the exercise with that id, or the first one with that name.

        Raises:
            CourseError: there is none; the message suggests the most similar one, or lists all.
        """
        return self.named(name)[0]

    def named(self, name: str) -> tuple[Exercise, ...]:
        """Return the exercise with that id, or those with that name, which phases may share.

        Raises:
            CourseError: there is none; the message suggests the most similar one, or lists all.
        """
        every = [e for phase in self.phases for e in self.exercises(phase)]
        if found := tuple(e for e in every if name in (e.name, e.id)):
            return found
        raise CourseError(f"There is no exercise {name!r}. {_suggested(name, every)}")

    def names(self) -> str:
        """Return a sentence for each phase, with the names of its exercises."""
        return " ".join(
            f"In {phase}: {listed([exercise.name for exercise in self.exercises(phase)])}."
            for phase in self.phases
        )

    def suite(self, audience: Audience, phase: str) -> Path:
        """Return the folder of a phase's tests.

        Raises:
            CourseError: this copy of the course has no such folder.
        """
        folder = self.root / "tests" / audience / phase
        if not folder.is_dir():
            missing = f"This copy of the course has no {audience} tests for {phase}"
            if audience == "hidden":
                raise CourseError(f"{missing}. {LEARNERS}")
            raise CourseError(f"{missing}: {folder} is missing.")
        return folder

    @property
    def is_release(self) -> bool:
        """Return whether this is a learner's copy, which `gradsync update` can update."""
        return (self.root / MANIFEST).is_file()

    @property
    def support(self) -> Path:
        """Return the folder of the code that the suites share: rules, probes and stand-ins."""
        return self.root / "tests" / "support"

    def standins(self, phase: str) -> Path:
        """Return the folder of the files that replace missing files of a submission."""
        return self.support / "standins" / phase

    def graded_phases(self, audience: Audience) -> tuple[str, ...]:
        """Return the phases that have tests for this audience."""
        return tuple(p for p in self.phases if (self.root / "tests" / audience / p).is_dir())

    def phases_to_grade(self, audience: Audience, number: str | None = None) -> tuple[str, ...]:
        """Return the phase with a number that a user typed, or else all phases that have tests.

        Raises:
            CourseError: the course has no such phase, or no such tests in this copy.
        """
        if number is not None:
            phase = self.phase(number)
            self.suite(audience, phase)
            return (phase,)
        found = self.graded_phases(audience)
        if not found:
            self.suite(audience, FIRST_PHASE)
        return found


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        OSError: it can't be read.
        ValueError: it is not valid TOML.
    """
    return tomllib.loads(path.read_text(encoding="utf-8"))


def find_course(
    start: Path | None = None, *, known: Path | None = None, carried: bool = False
) -> Course:
    """Return the course that contains the working folder, or else the package's checkout.

    Args:
        start: a folder instead of the working folder.
        known: a folder that comes before the package's checkout.
        carried: whether the course in gradsync's wheel will do, because nobody works on its files.

    Raises:
        CourseError: there is none.
    """
    here = (start or Path.cwd()).resolve()
    own = [*([known] if known else []), PACKAGE.parent, *([CARRIED] if carried else [])]
    for folder in (here, *here.parents, *own):
        if (folder / FIRST_PHASE / EXERCISES_FILE).is_file():
            return Course(folder)
    raise CourseError(
        f"There is no course here: neither {here} nor a folder above it has "
        f"{FIRST_PHASE}/{EXERCISES_FILE}. Change into your copy of the course, or make one: "
        "gradsync start my-course"
    )


def _suggested(name: str, exercises: Sequence[Exercise]) -> str:
    """Return a sentence that suggests exercises instead of an unknown name."""
    phase, slash, _ = name.partition("/")
    phases = list(dict.fromkeys(exercise.phase for exercise in exercises))
    known = {exercise.name.lower(): exercise.name for exercise in exercises}
    if slash and phase in phases:
        known = {e.id.lower(): e.id for e in exercises if e.phase == phase}
    elif slash or name.lower().startswith("phase"):
        return f"Name a phase ({listed(phases, 'or')}) and an exercise, as in {exercises[0].id}."
    close = difflib.get_close_matches(name.lower(), known, n=1)
    if close:
        return f"Did you mean {known[close[0]]}?"
    return f"The exercises are {listed(known.values())}."


@functools.cache
def _exercises(phase: str, text: str) -> tuple[Exercise, ...]:
    return tuple(_exercise(phase, row) for row in tomllib.loads(text)["exercise"])


def _exercise(phase: str, row: dict[str, Any]) -> Exercise:
    return Exercise(
        id=f"{phase}/{row['name']}",
        name=row["name"],
        file=row["file"],
        guide=row["guide"],
        goal=row["goal"],
        hints=tuple(row["hints"]),
        needs=tuple(f"{phase}/{name}" for name in row.get("needs", ())),
        notebook=row.get("notebook"),
    )
