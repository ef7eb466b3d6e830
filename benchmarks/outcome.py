"""What a grade said of one submission of known truth."""

from __future__ import annotations

from dataclasses import dataclass

from gradsync.bank import Right, Wrong
from gradsync.records import Verdict


@dataclass(frozen=True, slots=True)
class Outcome:
    """The first failure of a mistake or of a correct answer, where there is one."""

    known: Wrong | Right
    seconds: float
    first: Verdict | None  # of those not passed, in the order of a report
    alike: bool | None = None  # by all tests as well; None: not compared

    @property
    def true(self) -> bool:
        """Whether it is what was expected."""
        if isinstance(self.known, Right):
            return self.first is None
        return gist(self.first)[:2] == (self.known.exercise, self.known.code)

    def told(self) -> str:
        """Return what a person reads of it."""
        exercise, code, _ = gist(self.first)
        got = f"{code} in {exercise}" if self.first else "full marks"
        line = f"{self.seconds:6.1f} s  {self.known.name}: {got}"
        if self.alike is False:
            line += ", NOT alike by all tests"
        if self.true:
            return line
        wanted = "full marks"
        if isinstance(self.known, Wrong):
            wanted = f"{self.known.code} in {self.known.exercise}"
        message = self.first.message[:200] if self.first else ""
        return f"{line}, NOT {wanted}: {message}"


def gist(verdict: Verdict | None) -> tuple[str | None, str | None, str | None]:
    """Return a verdict's exercise, code and test."""
    if verdict is None:
        return None, None, None
    return verdict.exercise, verdict.diagnosis.code if verdict.diagnosis else None, verdict.id
