"""The grade of one known submission, compared with the expected result."""

from __future__ import annotations

from dataclasses import dataclass

from gradsync.course.known_submissions import Right, Wrong
from gradsync.records import Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """The first failure of a mistake or of a correct answer, or None."""

    known: Wrong | Right
    seconds: float
    first: Verdict | None  # the first verdict that is not "passed", in the order of a report
    same: bool | None = None  # whether all tests give the same first failure; None: not compared

    @property
    def correct(self) -> bool:
        """Whether the grade is as expected."""
        if isinstance(self.known, Right):
            return self.first is None
        return summary(self.first)[:2] == (self.known.exercise, self.known.code)

    def line(self) -> str:
        """Return a line that describes this outcome to a person."""
        exercise, code, _ = summary(self.first)
        got = f"{code} in {exercise}" if self.first else "full marks"
        line = f"{self.seconds:6.1f} s  {self.known.name}: {got}"
        if self.same is False:
            line += ", NOT the same with all tests"
        if self.correct:
            return line
        expected = "full marks"
        if isinstance(self.known, Wrong):
            expected = f"{self.known.code} in {self.known.exercise}"
        message = self.first.message[:200] if self.first else ""
        return f"{line}, NOT {expected}: {message}"


def summary(verdict: Verdict | None) -> tuple[str | None, str | None, str | None]:
    """Return a verdict's exercise, code and test."""
    if verdict is None:
        return None, None, None
    return verdict.exercise, verdict.diagnosis.code if verdict.diagnosis else None, verdict.id
