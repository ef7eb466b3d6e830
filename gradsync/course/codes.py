"""What the diagnosis codes mean: the cause of a mistake, with wrong and right lines.

`codes.toml` beside this module has the codes that gradsync reports in any course, and
`PHASE/codes.toml` has those of a phase's exercises. A code may be in several files, and several
times in one, each time with another cause.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradsync.course.catalogue import Course, CourseError, read_toml
from gradsync.text import listed

CODES_FILE = "codes.toml"
OF_ANY_COURSE = Path(__file__).with_name(CODES_FILE)


@dataclass(frozen=True, slots=True)
class Meaning:
    """A mistake that a code stands for. Its texts have one line each."""

    code: str
    cause: str
    wrong: str  # lines of Python
    right: str
    symptom: str = ""  # what a learner sees without gradsync
    exercise: str = ""  # "phase1/NAME"; "" for any exercise
    guide: str = ""  # a heading of GUIDELINES.md

    @property
    def phase(self) -> str:
        return self.exercise.partition("/")[0]


def meanings(course: Course | None) -> tuple[Meaning, ...]:
    """Return the meanings of all codes of a course, those of any course first.

    Raises:
        CourseError: a file can't be read, or names an exercise that does not exist.
    """
    found = list(_read(OF_ANY_COURSE))
    if course is not None:
        for phase in course.phases:
            found += _of_phase(course, phase)
    return tuple(found)


def of_code(code: str, known: Sequence[Meaning]) -> tuple[Meaning, ...]:
    """Return the meanings of one code.

    Raises:
        CourseError: there is no such code; the message suggests similar ones.
    """
    wanted = code.strip().lower()
    if found := tuple(meaning for meaning in known if meaning.code == wanted):
        return found
    codes = list(dict.fromkeys(meaning.code for meaning in known))
    close = [other for other in codes if wanted and wanted in other]
    close = close or difflib.get_close_matches(wanted, codes)
    hint = f" Did you mean {listed(close[:3], 'or')}?" if close else ""
    raise CourseError(
        f"There is no code {code!r}.{hint} `gradsync explain` lists all codes, and "
        "`gradsync review --explain all` the rules of `gradsync review`."
    )


def _of_phase(course: Course, phase: str) -> Iterator[Meaning]:
    path = course.root / phase / CODES_FILE
    if not path.is_file():
        return
    exercises = {exercise.name: exercise for exercise in course.exercises(phase)}
    for meaning in _read(path):
        exercise = exercises.get(meaning.exercise)
        if exercise is None:
            raise CourseError(f"{path}: {phase} has no exercise {meaning.exercise!r}.")
        yield replace(meaning, exercise=exercise.id, guide=meaning.guide or exercise.guide)


def _read(path: Path) -> list[Meaning]:
    try:
        return [Meaning(**row) for row in read_toml(path)["meaning"]]
    except (OSError, KeyError, TypeError, ValueError) as problem:
        raise CourseError(f"{path} can't be read as a list of codes: {problem}.") from None
