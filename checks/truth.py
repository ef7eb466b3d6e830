"""`make truth`: grade the whole bank, and print how many grades are correct.

A submission is graded only by the exercises whose tests run a function that it changes
(`checks.impact`), since the other tests would run exactly the code of the solution; and only up
to the first test that fails, in the order of a report. One in fifty is also graded by all tests,
which must give the same first failure. The table in docs/figures.md is replaced. With phases or
names of submissions as arguments, only these are graded and docs/figures.md stays unchanged:
`python -m checks.truth phase1`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from checks.impact import affected_exercises, exercises_running, ran_by_exercise
from checks.outcome import Outcome, summary
from checks.tally import Tally, table, tally, write_into
from gradsync.course.catalogue import find_course
from gradsync.course.known_submissions import (
    Right,
    Wrong,
    reference,
    right_submissions,
    wrong_submissions,
)
from gradsync.grading.grade import grade
from gradsync.records import Verdict

COURSE = find_course(Path(__file__).parent)
SEED = 1
CHECKED = 50  # one of so many is also graded by all tests
AT_ONCE = 2 * (os.cpu_count() or 1)  # while one waits for a lost rank, another can run
FEW = 20  # if at most so many are graded, each is also graded by all tests


def main(names: Sequence[str]) -> int:
    """Grade, print the table, write it into docs/figures.md if complete; return the status."""
    banks = {phase: _bank(phase) for phase in COURSE.graded_phases("hidden")}
    unknown = set(names) - set(banks) - {known.name for bank in banks.values() for known in bank}
    if unknown:
        print(f"Neither a phase nor in the bank: {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    tallies: dict[str, Tally] = {}
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:
        for phase, bank in banks.items():
            asked = [known for known in bank if not names or {known.name, phase} & set(names)]
            if asked:
                began = time.monotonic()
                outcomes = list(_graded(asked, phase, pool))
                tallies[phase] = tally(outcomes, time.monotonic() - began)
    print(f"\n{table(tallies)}")
    if not names:
        write_into(COURSE.root / "docs" / "figures.md", table(tallies))
    return int(not all(one.sufficient for one in tallies.values()))


def _bank(phase: str) -> tuple[Wrong | Right, ...]:
    """Return a phase's bank; correct answers first, as they take longest."""
    return (*right_submissions(COURSE, phase), *wrong_submissions(COURSE, phase))


def _graded(asked: Sequence[Wrong | Right], phase: str, pool: Executor) -> Iterator[Outcome]:
    """Grade in parallel, and print each outcome."""
    ran = ran_by_exercise(COURSE, phase, SEED, pool)
    every = CHECKED if len(asked) > FEW else 1
    solution = reference(COURSE)
    jobs = []
    for number, known in enumerate(asked):
        if isinstance(known, Right):
            exercises = list(ran) if known.whole else exercises_running(known.definitions, ran)
        else:
            exercises = affected_exercises(known.submission(COURSE), solution, ran)
        jobs.append(pool.submit(graded, known, exercises, check=number % every == 0))
    for job in as_completed(jobs):
        print(job.result().line(), flush=True)
        yield job.result()


def graded(known: Wrong | Right, exercises: Sequence[str], check: bool) -> Outcome:
    """Grade by these exercises up to the first failure; if `check`, also by all tests."""
    began = time.monotonic()
    failures = (_first_failure(known, exercise) for exercise in exercises)
    first = next((failure for failure in failures if failure), None)
    seconds = time.monotonic() - began
    same = summary(first) == summary(_first_failure(known)) if check else None
    return Outcome(known, seconds, first, same)


def _first_failure(known: Wrong | Right, exercise: str | None = None) -> Verdict | None:
    """Return the first verdict of a report that is not passed, or None."""
    report = grade(
        known.submission(COURSE),
        COURSE,
        phases=[known.phase],
        seed=SEED,
        exercise=exercise,
        parallel=1,  # several are graded at a time
        pytest_options=["--exitfirst"] if exercise else [],
    )
    return next((verdict for verdict in report.verdicts if verdict.status != "passed"), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
