"""Submissions with one known mistake each: small patches on the solution, kept as TOML."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from gradsync.course import Course, CourseError
from gradsync.submission import Submission
from gradsync.templates import templates

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Wrong:
    """One mistake that a person would really make, and the diagnosis that it must get."""

    name: str
    exercise: str  # "phase1/average_gradients"
    code: str  # "sum-not-mean"
    file: str  # "phase1/template_trainer.py"
    old: str  # of the solution's text, where it stands once
    new: str

    def submission(self, course: Course) -> Submission:
        """Return the solution with this mistake in it.

        Raises:
            CourseError: the patch does not fit the solution.
        """
        files = dict(reference(course).files)
        source = files[self.file].decode()
        if source.count(self.old) != 1:
            raise CourseError(
                f"{self.name}: the text to replace stands {source.count(self.old)} times in "
                f"solutions/{self.file}, once is wanted:\n{self.old}"
            )
        files[self.file] = source.replace(self.old, self.new).encode()
        return Submission(self.name, files)


def wrong_submissions(course: Course, phase: str) -> tuple[Wrong, ...]:
    """Return the known mistakes of a phase, from `tests/wrong/PHASE.toml`.

    Raises:
        CourseError: the file is not there or can't be read.
    """
    path = course.root / "tests" / "wrong" / f"{phase}.toml"
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["wrong"]
        return tuple(
            Wrong(
                name=row["name"],
                exercise=f"{phase}/{row['exercise']}",
                code=row["code"],
                file=f"{phase}/{course.find(row['exercise']).file}",
                old=row["old"],
                new=row["new"],
            )
            for row in rows
        )
    except (OSError, KeyError, TypeError, ValueError) as problem:
        raise CourseError(f"{path} can't be read as a list of mistakes: {problem}") from None


def reference(course: Course) -> Submission:
    """Return the reference solution as a submission."""
    paths = [f"{phase}/{file}" for phase in course.phases for file in course.files(phase)]
    return Submission("reference", _read(course, paths))


def untouched(course: Course) -> Submission:
    """Return the templates as a learner gets them, as a submission."""
    return Submission(
        "untouched-template", {path: text.encode() for path, text in templates(course)}
    )


def _read(course: Course, paths: list[str]) -> Mapping[str, bytes]:
    try:
        return {path: (course.root / "solutions" / path).read_bytes() for path in paths}
    except OSError as problem:
        raise CourseError(f"this copy of the course has no solutions: {problem}") from None
