"""`make truth`: grade all of the bank in full, and write into README.md how true the grades are."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from rich.progress import track

from gradsync.bank import Right, Wrong, right_submissions, wrong_submissions
from gradsync.course import find_course
from gradsync.grading import grade

SEED = 1
NAMED_SHARE = 0.97  # of the wrong ones, that must be named with the expected code first
BLOCK = re.compile(r"(?<=<!-- truth -->\n).*?(?=<!-- /truth -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a full grade said of one submission of known truth."""

    known: Wrong | Right
    full_marks: bool
    first: tuple[str, str | None] | None  # exercise and code of the first test that failed
    message: str = ""

    @property
    def caught(self) -> bool:
        return not self.full_marks

    @property
    def named(self) -> bool:
        assert isinstance(self.known, Wrong)
        return self.first == (self.known.exercise, self.known.code)

    def told(self) -> str:
        """Return a line for one that went wrong."""
        wanted = "full marks"
        if isinstance(self.known, Wrong):
            wanted = f"{self.known.code} in {self.known.exercise}"
        got = f"{self.first[1]} in {self.first[0]}" if self.first else "full marks"
        return f"{self.known.name}: expected {wanted}, got {got}: {self.message[:200]}"


def main() -> int:
    """Grade, print and write the table; 1 where it falls short."""
    began = time.monotonic()
    outcomes = list(_graded())
    wrong = [o for o in outcomes if isinstance(o.known, Wrong)]
    right = [o for o in outcomes if isinstance(o.known, Right)]
    counts = [
        ("mistakes caught", sum(o.caught for o in wrong), len(wrong), 1.0),
        ("mistakes named rightly, first", sum(o.named for o in wrong), len(wrong), NAMED_SHARE),
        ("correct answers with full marks", sum(o.full_marks for o in right), len(right), 1.0),
    ]
    for outcome in [o for o in wrong if not o.named] + [o for o in right if not o.full_marks]:
        print(outcome.told())
    table = "".join(_row(what, count, of) for what, count, of, _ in counts)
    print(f"\n{table}\n{len(outcomes)} full grades in {time.monotonic() - began:,.0f} s")
    readme = find_course().root / "README.md"
    text = readme.read_text(encoding="utf-8")
    readme.write_text(BLOCK.sub(lambda _: f"\n| | | |\n|---|---|---|\n{table}\n", text))
    return int(any(count < share * of for _, count, of, share in counts))


def _graded() -> Iterator[Outcome]:
    """Grade all side by side, a process a core."""
    known = _bank()
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(grade_one, index) for index in range(len(known))]
        for job in track(as_completed(jobs), "grading the bank", total=len(jobs)):
            yield job.result()


def grade_one(index: int) -> Outcome:
    """Grade the one of this number in the bank by the whole hidden suite."""
    course = find_course(Path(__file__).parent)
    known = _bank()[index]
    report = grade(known.submission(course), course, phases=course.phases, seed=SEED)
    failed = next((v for v in report.verdicts if v.status != "passed"), None)
    if failed is None:
        return Outcome(known, full_marks=True, first=None)
    code = failed.diagnosis.code if failed.diagnosis else None
    return Outcome(known, False, (failed.exercise, code), failed.message)


def _bank() -> Sequence[Wrong | Right]:
    course = find_course(Path(__file__).parent)
    return [
        known
        for phase in course.phases
        for known in (*wrong_submissions(course, phase), *right_submissions(course, phase))
    ]


def _row(what: str, count: int, of: int) -> str:
    return f"| {what} | {count} of {of} | {count / of:.1%} |\n"


if __name__ == "__main__":
    sys.exit(main())
