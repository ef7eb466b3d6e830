"""Frozen, plain data on a class of learners: its people, their results, and corrections.

`gradsync.grading.classes.results` reads them from a folder of grades; pages and exports show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from gradsync.records import CodePrint, GradeStatus, Verdict

# "not-graded": handed in, but its run was stopped, or its shard is missing.
# "missing": on the roster, but nothing was handed in.
TOTAL = "total"  # the exercise of a correction that is about the final score
RUBRIC = "rubric"  # the phase of the criteria that staff grade by hand
ResultStatus = Literal[GradeStatus, "not-graded", "missing"]
_ROUNDING = 0.005  # points


@dataclass(frozen=True, slots=True)
class Person:
    """A row of roster.csv."""

    id: str
    name: str
    email: str = ""
    section: str = ""
    due: datetime | None = None  # instead of the course's due time
    days: float = 0.0  # extension granted, in days
    submission: str = ""  # its name, if id, address and name do not lead to it
    handed_in: datetime | None = None  # for a download without times

    @property
    def label(self) -> str:
        """The name with the id, because several people may share a name."""
        return self.name if self.name == self.id else f"{self.name} ({self.id})"


@dataclass(frozen=True, slots=True)
class Override:
    """A row of overrides.csv: points that replace others, with the reason, or a comment."""

    submission: str
    exercise: str  # "phase1/NAME", "phase1/trainer::test_NAME" or "total"
    points: float | None  # None: a comment
    reason: str
    by: str
    line: int = field(default=0, compare=False)  # of the file


@dataclass(frozen=True, slots=True)
class Facts:
    """What a download says about a submission, and no report contains."""

    submission: str  # its name, as in its report
    learner: str  # the name in the gradebook; several attempts share it
    names: tuple[str, ...] = ()  # ids, addresses or names that the roster may have for the learner
    handed_in: datetime | None = None  # with a time zone
    attempt: int | None = None  # from 1, if there are several
    attempts: int = 1
    notes: tuple[str, ...] = ()
    counts: bool = True  # False: a later download no longer has this attempt
    graded: bool = False  # it has, or had, a report
    platform: str = ""  # "canvas", "moodle" or "gradescope", if the download is from there
    key: str = ""  # the learner's id there
    uploads: tuple[str, ...] = ()  # the names in the download that it consists of
    group: tuple[str, ...] = ()  # the learners who handed it in together, if there are several

    def key_in(self, platform: str) -> str:
        """Return the learner's id in a platform, "" if the download is from elsewhere."""
        return self.key if self.platform == platform else ""


@dataclass(frozen=True, slots=True)
class ExerciseResult:
    """A learner's points in an exercise, with the corrections of staff."""

    exercise: str  # "phase1/NAME", or "rubric/NAME"
    points: float  # after corrections
    max_points: float
    corrections: tuple[Override, ...] = ()  # comments, too

    @property
    def is_criterion(self) -> bool:
        """Whether staff grade it by hand."""
        return self.exercise.startswith(f"{RUBRIC}/")

    @property
    def is_waiting(self) -> bool:
        """Whether staff still have to grade it by hand."""
        return self.is_criterion and self.override is None

    @property
    def override(self) -> Override | None:
        """The correction that decides its points, or the first of several."""
        return next((each for each in self.corrections if each.points is not None), None)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one submission, or of a person who handed in nothing."""

    submission: str
    status: ResultStatus
    score: float | None = None  # final: with overrides, and without the points lost by lateness
    max_score: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)  # after overrides
    exercises: tuple[ExerciseResult, ...] = ()
    tests: tuple[Verdict, ...] = ()
    facts: Facts = Facts("", "")  # what its download says; of several attempts, on the one counted
    person: Person | None = None  # if the roster names one
    seconds: float | None = None  # of grading
    handed_in: datetime | None = None
    days_late: float = 0.0  # after extension and grace
    days_charged: int = 0  # of them, each one that has begun
    points_lost: float = 0.0  # by lateness
    notes: tuple[str, ...] = ()  # with those of the download
    folder: str = ""  # of its report in the folder of grades; "" if it has none
    sandboxed: bool = True  # False: its ranks ran with the grader's rights
    seed: int | None = None  # of the tests' random inputs
    prints: tuple[CodePrint, ...] = ()  # of its files
    total: tuple[Override, ...] = ()  # corrections of the total, and comments on it

    @property
    def first_code(self) -> str:
        """The code of the first mistake that costs points, or "".

        "unfinished" is the code only if nothing that was written is wrong. Exercises that have full
        points after an override do not count. An unreadable submission has no mistakes, because no
        test ran.
        """
        if self.status == "unreadable":
            return ""
        excused = {e.exercise for e in self.exercises if e.override and e.points >= e.max_points}
        wrong = [t for t in self.tests if t.diagnosis and not t.given and t.exercise not in excused]
        wrong.sort(key=lambda test: test.status == "unfinished")
        return next((test.diagnosis.code for test in wrong if test.diagnosis), "")

    @property
    def is_corrected(self) -> bool:
        """Whether the tests alone don't decide the points, as with lateness or a rubric."""
        most = sum(test.max_points for test in self.tests)
        has_more = self.max_score is not None and abs(self.max_score - most) > _ROUNDING
        return self.score is not None and bool(self.overrides or self.days_charged or has_more)

    @property
    def is_changed(self) -> bool:
        """Whether a correction has changed the points, or lateness costs some."""
        given = any(each.points is not None for each in self.overrides)
        return self.score is not None and (given or bool(self.points_lost))

    @property
    def overrides(self) -> tuple[Override, ...]:
        """All corrections of staff, with comments."""
        return (*self.total, *(each for of in self.exercises for each in of.corrections))


@dataclass(frozen=True, slots=True)
class GradedExercise:
    """An exercise of the course, as a class page or an export shows it."""

    id: str
    name: str
    guide: str  # the heading in GUIDELINES.md
    max_points: float


@dataclass(frozen=True, slots=True)
class Similar:
    """Submissions with the same or almost the same code in some files."""

    members: tuple[str, ...]
    files: tuple[tuple[str, float], ...]  # each with the share that is the same; 1.0: identical


@dataclass(frozen=True, slots=True)
class ClassResults:
    """All results in a folder of grades, sorted by submission."""

    title: str  # of the course
    phases: tuple[str, ...]
    exercises: tuple[GradedExercise, ...]
    results: Sequence[Result]
    seed: int | None = None
    graded_at: datetime | None = None  # when the last of them was graded
    warnings: tuple[str, ...] = ()  # about lines of overrides.csv, and names missing in roster.csv
    similar: tuple[Similar, ...] = ()  # not of the same group
    stale: tuple[str, ...] = ()  # submissions that earlier tests graded
