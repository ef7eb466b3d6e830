"""`make truth`: grade all of the bank, and print how true the grades are.

A correct answer is graded by all tests. A mistake is graded up to the first test that fails, in the
order of a report, by the exercises whose tests run a function that it changes (`benchmarks.impact`):
the others do what they do with the solution, and nothing after the first failure can come before
it. One mistake in fifty is graded by all tests as well, and must be told alike. Phases or names as
arguments grade those alone: `python -m benchmarks.truth phase1`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.impact import affected_exercises, ran_by_exercise
from gradsync.bank import Right, Wrong, reference, right_submissions, wrong_submissions
from gradsync.course import find_course
from gradsync.grading import grade
from gradsync.records import Verdict

COURSE = find_course(Path(__file__).parent)
SEED = 1
NAMED_SHARE = 0.97  # of the wrong ones, that must be named with the expected code first
CHECKED = 50  # one in so many mistakes is graded by all tests as well
FEW = 20  # so few mistakes are each graded by all tests as well


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a grade said of one submission of known truth."""

    known: Wrong | Right
    seconds: float
    first: Verdict | None  # of those not passed, in the order of a report
    alike: bool | None = None  # by all tests as well; None: not compared

    @property
    def true(self) -> bool:
        """Whether it is what was expected."""
        if isinstance(self.known, Right):
            return self.first is None
        return _gist(self.first)[:2] == (self.known.exercise, self.known.code)

    def told(self) -> str:
        """Return what a person reads of it."""
        exercise, code, _ = _gist(self.first)
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


def main(names: Sequence[str]) -> int:
    """Grade and print a table for each phase; 1 where one falls short."""
    short = False
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for phase in COURSE.graded_phases("hidden"):
            bank = (*right_submissions(COURSE, phase), *wrong_submissions(COURSE, phase))
            asked = [known for known in bank if not names or {known.name, phase} & set(names)]
            if not asked:
                continue
            began = time.monotonic()
            outcomes = list(_graded(asked, phase, pool))
            print(f"\n{phase}, {len(asked)} grades in {time.monotonic() - began:,.0f} s")
            short |= not _tell(outcomes)
    return int(short)


def _tell(outcomes: Sequence[Outcome]) -> bool:
    """Print a phase's rows of the table; False where it falls short."""
    wrong = [o for o in outcomes if isinstance(o.known, Wrong)]
    right = [o for o in outcomes if isinstance(o.known, Right)]
    compared = [o for o in outcomes if o.alike is not None]
    rows = [
        ("mistakes caught", sum(o.first is not None for o in wrong), len(wrong), 1.0),
        ("mistakes named rightly, first", sum(o.true for o in wrong), len(wrong), NAMED_SHARE),
        ("correct answers with full marks", sum(o.true for o in right), len(right), 1.0),
        ("alike by all tests", sum(bool(o.alike) for o in compared), len(compared), 1.0),
    ]
    for what, count, of, _ in rows:
        print(f"{what}: {count} of {of}")
    print()
    return all(count >= share * of for _, count, of, share in rows)


def _graded(asked: Sequence[Wrong | Right], phase: str, pool: Executor) -> Iterator[Outcome]:
    """Grade side by side, a process a core, and print what comes of each."""
    ran = ran_by_exercise(COURSE, phase, SEED, pool)
    every = CHECKED if len(asked) > FEW else 1
    solution = reference(COURSE)
    jobs = []
    for number, known in enumerate(asked):
        if isinstance(known, Right):
            jobs.append(pool.submit(grade_right, known))
        else:
            exercises = affected_exercises(known.submission(COURSE), solution, ran)
            jobs.append(pool.submit(grade_wrong, known, exercises, check=number % every == 0))
    for job in as_completed(jobs):
        print(job.result().told(), flush=True)
        yield job.result()


def grade_right(known: Right) -> Outcome:
    """Grade a correct answer by all tests of its phase."""
    began = time.monotonic()
    first = _first_failure(known)
    return Outcome(known, time.monotonic() - began, first)


def grade_wrong(known: Wrong, exercises: Sequence[str], check: bool) -> Outcome:
    """Grade a mistake by these exercises' tests up to the first failure; if asked, by all, too."""
    began = time.monotonic()
    failures = (_first_failure(known, exercise) for exercise in exercises)
    first = next((failure for failure in failures if failure), None)
    seconds = time.monotonic() - began
    alike = _gist(first) == _gist(_first_failure(known)) if check else None
    return Outcome(known, seconds, first, alike)


def _first_failure(known: Wrong | Right, exercise: str | None = None) -> Verdict | None:
    """Return the first verdict of a report that is not a pass; None: all passed."""
    report = grade(
        known.submission(COURSE),
        COURSE,
        phases=[known.phase],
        seed=SEED,
        exercise=exercise,
        workers=1,  # several are graded at a time
        pytest_options=["--exitfirst"] if exercise else [],
    )
    return next((verdict for verdict in report.verdicts if verdict.status != "passed"), None)


def _gist(verdict: Verdict | None) -> tuple[str | None, str | None, str | None]:
    """Return a verdict's exercise, code and test."""
    if verdict is None:
        return None, None, None
    return verdict.exercise, verdict.diagnosis.code if verdict.diagnosis else None, verdict.id


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
