"""`make truth`: grade all of the bank in full, and print how true the grades are.

A mistake is graded by the tests that run a function it changes (`benchmarks.impact`): of the others
the grade is the solution's. One in twenty is graded by all tests as well, and must come out alike.
Phases or names as arguments grade those alone, a few of them by all tests:
`python -m benchmarks.truth phase1`.
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

from benchmarks.impact import affected_tests, ran_by_test
from gradsync.bank import Right, Wrong, reference, right_submissions, wrong_submissions
from gradsync.course import find_course
from gradsync.grading import grade
from gradsync.records import Verdict

COURSE = find_course(Path(__file__).parent)
SEED = 1
NAMED_SHARE = 0.97  # of the wrong ones, that must be named with the expected code first
CHECKED = 20  # one in so many mistakes is graded by all tests as well
FEW = 20  # grades by all tests, which are done sooner than it is found out what each test runs


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a full grade said of one submission of known truth."""

    known: Wrong | Right
    seconds: float
    failed: tuple[Verdict, ...]  # in the order of the course
    alike: bool | None = None  # by all tests as well; None: not compared

    @property
    def named(self) -> bool:
        assert isinstance(self.known, Wrong)
        return self._first == (self.known.exercise, self.known.code)

    @property
    def _first(self) -> tuple[str, str | None] | None:
        return (self.failed[0].exercise, _code(self.failed[0])) if self.failed else None

    def told(self) -> str:
        """Return what a person reads of it."""
        got = f"{self._first[1]} in {self._first[0]}" if self._first else "full marks"
        line = f"{self.seconds:6.1f} s  {self.known.name}: {got}"
        if self.alike is False:
            line += ", NOT alike by all tests"
        if self.named if isinstance(self.known, Wrong) else not self.failed:
            return line
        wanted = "full marks"
        if isinstance(self.known, Wrong):
            wanted = f"{self.known.code} in {self.known.exercise}"
        message = self.failed[0].message[:200] if self.failed else ""
        return f"{line}, NOT {wanted}: {message}"


def main(names: Sequence[str]) -> int:
    """Grade and print a table for each phase; 1 where one falls short."""
    began = time.monotonic()
    count, short = 0, False
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for phase in COURSE.graded_phases("hidden"):
            bank = (*wrong_submissions(COURSE, phase), *right_submissions(COURSE, phase))
            asked = [known for known in bank if not names or {known.name, phase} & set(names)]
            outcomes = list(_graded(asked, phase, pool))
            count += len(outcomes)
            short |= bool(outcomes) and not _tell(phase, outcomes)
    print(f"{count} full grades in {time.monotonic() - began:,.0f} s")
    return int(short)


def _tell(phase: str, outcomes: Sequence[Outcome]) -> bool:
    """Print a phase's rows of the table; False where it falls short."""
    wrong = [o for o in outcomes if isinstance(o.known, Wrong)]
    right = [o for o in outcomes if isinstance(o.known, Right)]
    compared = [o for o in outcomes if o.alike is not None]
    rows = [
        ("mistakes caught", sum(bool(o.failed) for o in wrong), len(wrong), 1.0),
        ("mistakes named rightly, first", sum(o.named for o in wrong), len(wrong), NAMED_SHARE),
        ("correct answers with full marks", sum(not o.failed for o in right), len(right), 1.0),
        ("alike by all tests", sum(bool(o.alike) for o in compared), len(compared), 1.0),
    ]
    print(f"\n{phase}")
    for what, count, of, _ in rows:
        print(f"{what}: {count} of {of}")
    print()
    return all(count >= share * of for _, count, of, share in rows)


def _graded(asked: Sequence[Wrong | Right], phase: str, pool: Executor) -> Iterator[Outcome]:
    """Grade side by side, a process a core, and print what comes of each."""
    if not asked:
        return
    ran = ran_by_test(COURSE, phase, SEED, pool) if len(asked) > FEW else {}
    solution = reference(COURSE)
    jobs = []
    for number, known in enumerate(asked):
        tests = affected_tests(known.submission(COURSE), solution, ran)
        jobs.append(pool.submit(grade_one, known, tests, check=number % CHECKED == 0))
    for job in as_completed(jobs):
        print(job.result().told(), flush=True)
        yield job.result()


def grade_one(known: Wrong | Right, tests: Sequence[str] | None, check: bool = False) -> Outcome:
    """Grade one of the bank by these hidden tests; None: by all of its phase."""
    report = grade(
        known.submission(COURSE), COURSE, phases=[known.phase], seed=SEED, tests=tests, workers=1
    )
    failed = tuple(verdict for verdict in report.verdicts if verdict.status != "passed")
    alike = None
    if check and tests is not None:
        whole = grade_one(known, None).failed
        alike = [(v.id, _code(v)) for v in failed] == [(v.id, _code(v)) for v in whole]
    return Outcome(known, report.seconds, failed, alike)


def _code(verdict: Verdict) -> str | None:
    return verdict.diagnosis.code if verdict.diagnosis else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
