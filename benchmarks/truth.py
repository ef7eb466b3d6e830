"""`make truth`: grade all of the bank in full, and print how true the grades are.

Phases or names as arguments grade those alone: `python -m benchmarks.truth phase1`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from gradsync.bank import Right, Wrong, right_submissions, wrong_submissions
from gradsync.course import find_course
from gradsync.grading import grade

SEED = 1
NAMED_SHARE = 0.97  # of the wrong ones, that must be named with the expected code first


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a full grade said of one submission of known truth."""

    known: Wrong | Right
    seconds: float
    first: tuple[str, str | None] | None  # exercise and code of the first test that failed
    message: str = ""

    @property
    def full_marks(self) -> bool:
        return self.first is None

    @property
    def named(self) -> bool:
        assert isinstance(self.known, Wrong)
        return self.first == (self.known.exercise, self.known.code)

    @property
    def true(self) -> bool:
        return self.named if isinstance(self.known, Wrong) else self.full_marks

    def told(self) -> str:
        """Return what a person reads of it."""
        got = f"{self.first[1]} in {self.first[0]}" if self.first else "full marks"
        line = f"{self.seconds:6.1f} s  {self.known.name}: {got}"
        if self.true:
            return line
        wanted = "full marks"
        if isinstance(self.known, Wrong):
            wanted = f"{self.known.code} in {self.known.exercise}"
        return f"{line}, NOT {wanted}: {self.message[:200]}"


def main(names: Sequence[str]) -> int:
    """Grade and print the table; 1 where it falls short."""
    began = time.monotonic()
    outcomes: dict[str, list[Outcome]] = {}  # by phase
    for outcome in _graded(names):
        print(outcome.told(), flush=True)
        outcomes.setdefault(outcome.known.phase, []).append(outcome)
    short = [phase for phase in sorted(outcomes) if not _tell(phase, outcomes[phase])]
    count = sum(map(len, outcomes.values()))
    print(f"\n{count} full grades in {time.monotonic() - began:,.0f} s")
    return int(bool(short))


def _tell(phase: str, outcomes: Sequence[Outcome]) -> bool:
    """Print a phase's rows of the table; False where it falls short."""
    wrong = [o for o in outcomes if isinstance(o.known, Wrong)]
    right = [o for o in outcomes if isinstance(o.known, Right)]
    rows = [
        ("mistakes caught", sum(not o.full_marks for o in wrong), len(wrong), 1.0),
        ("mistakes named rightly, first", sum(o.named for o in wrong), len(wrong), NAMED_SHARE),
        ("correct answers with full marks", sum(o.full_marks for o in right), len(right), 1.0),
    ]
    print(f"\n{phase}")
    for what, count, of, _ in rows:
        print(f"{what}: {count} of {of}")
    return all(count >= share * of for _, count, of, share in rows)


def _graded(names: Sequence[str]) -> Iterator[Outcome]:
    """Grade side by side, a process a core."""
    asked = [known for known in _bank() if not names or {known.name, known.phase} & set(names)]
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(grade_one, known) for known in asked]
        for job in as_completed(jobs):
            yield job.result()


def grade_one(known: Wrong | Right) -> Outcome:
    """Grade one of the bank by the whole hidden suite of its phase."""
    course = find_course(Path(__file__).parent)
    submission = known.submission(course)
    report = grade(submission, course, phases=[known.phase], seed=SEED, workers=1)
    failed = next((v for v in report.verdicts if v.status != "passed"), None)
    if failed is None:
        return Outcome(known, report.seconds, first=None)
    code = failed.diagnosis.code if failed.diagnosis else None
    return Outcome(known, report.seconds, (failed.exercise, code), failed.message)


def _bank() -> Sequence[Wrong | Right]:
    course = find_course(Path(__file__).parent)
    return [
        known
        for phase in course.graded_phases("hidden")
        for known in (*wrong_submissions(course, phase), *right_submissions(course, phase))
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
