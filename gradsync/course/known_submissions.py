"""Known submissions: wrong ones with one mistake each, and right ones written differently.

A wrong one is the solution with a small patch, an entry of `tests/known/wrong/PHASE/FILE.toml`. A
right one is the solution with some or all exercises written anew, and nothing else: the content of
`tests/known/right/PHASE/FILE/NAME.py` is appended to the file, so its definitions override earlier
ones. An answer may have a file in several of these folders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradsync.course.catalogue import Course, CourseError, read_toml
from gradsync.course.patches import patched
from gradsync.course.templates import templates
from gradsync.submission import Submission


@dataclass(frozen=True, slots=True)
class Wrong:
    """A realistic mistake, and the diagnosis that it must get."""

    name: str
    exercise: str  # "phase1/NAME"
    code: str  # of the diagnosis
    file: str  # "phase1/template_trainer.py"
    patches: tuple[tuple[str, str], ...]  # of the solution's code: old, new (see `patches`)
    demo: bool = False  # `gradsync demo` shows it

    @property
    def phase(self) -> str:
        return self.exercise.partition("/")[0]

    def submission(self, course: Course) -> Submission:
        """Return the solution with this mistake.

        Raises:
            CourseError: the patch does not apply to the solution.
        """
        files = dict(reference(course).files)
        source = files[self.file].decode()
        try:
            for old, new in self.patches:
                source = patched(source, old, new)
        except ValueError as problem:
            where = f"tests/known/wrong, {self.name!r}, on solutions/{self.file}"
            raise CourseError(f"{where}: {problem}") from None
        files[self.file] = source.encode()
        return Submission(self.name, files)


@dataclass(frozen=True, slots=True)
class Right:
    """The solution with some functions written in a different, correct way."""

    name: str
    additions: Mapping[str, str]  # "phase1/template_trainer.py" -> Python source

    @property
    def phase(self) -> str:
        return next(iter(self.additions)).partition("/")[0]

    def submission(self, course: Course) -> Submission:
        """Return the solution with these functions replaced."""
        files = dict(reference(course).files)
        for path, text in self.additions.items():
            files[path] += f"\n\n{text}".encode()
        return Submission(self.name, files)


def wrong_submissions(course: Course, phase: str) -> tuple[Wrong, ...]:
    """Return the known mistakes of a phase, from `tests/known/wrong/PHASE`.

    Raises:
        CourseError: a file there can't be read.
    """
    paths = sorted((course.root / "tests" / "known" / "wrong" / phase).glob("*.toml"))
    return tuple(wrong for path in paths for wrong in _wrong_ones(path, course, phase))


def shown_mistake(course: Course) -> Wrong:
    """Return the known mistake that `gradsync demo` shows.

    Raises:
        CourseError: the course marks none.
    """
    for phase in course.phases:
        for wrong in wrong_submissions(course, phase):
            if wrong.demo:
                return wrong
    nothing = "No mistake in tests/known/wrong has `demo = true`, so there is nothing to show."
    raise CourseError(nothing)


def _wrong_ones(path: Path, course: Course, phase: str) -> tuple[Wrong, ...]:
    try:
        return tuple(
            Wrong(
                name=row["name"],
                exercise=f"{phase}/{exercise}",
                code=row["code"],
                file=f"{phase}/{course.find(f'{phase}/{exercise}').file}",
                patches=tuple(zip(_list(row["old"]), _list(row["new"]), strict=True)),
                demo=row.get("demo", False),
            )
            for exercise, rows in read_toml(path).items()
            for row in rows
        )
    except (OSError, KeyError, TypeError, ValueError) as problem:
        raise CourseError(f"{path} can't be read as a list of mistakes: {problem}.") from None


def right_submissions(course: Course, phase: str) -> tuple[Right, ...]:
    """Return the correct answers of a phase, from `tests/known/right/PHASE`, sorted by name."""
    additions: dict[str, dict[str, str]] = {}
    for file in course.files(phase):
        folder = course.root / "tests" / "known" / "right" / phase / Path(file).stem
        for path in sorted(folder.glob("*.py")):
            text = path.read_text(encoding="utf-8")
            additions.setdefault(path.stem, {})[f"{phase}/{file}"] = text
    return tuple(Right(name, additions[name]) for name in sorted(additions))


def reference(course: Course) -> Submission:
    """Return the reference solution as a submission."""
    paths = [f"{phase}/{file}" for phase in course.phases for file in course.files(phase)]
    try:
        files = {path: (course.root / "solutions" / path).read_bytes() for path in paths}
    except OSError as problem:
        raise CourseError(f"This copy of the course has no solutions: {problem}.") from None
    return Submission("reference", files)


def untouched(course: Course) -> Submission:
    """Return the unchanged templates as a submission."""
    return Submission(
        "untouched-template", {path: text.encode() for path, text in templates(course)}
    )


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
