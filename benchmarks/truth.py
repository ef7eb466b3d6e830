"""`make truth`: grade all of the bank, and print how true the grades are.

A correct answer is graded by all tests. A mistake is graded up to the first test that fails, in the
order of a report, by the exercises whose tests run a function that it changes: the others do what
they do with the solution (`benchmarks.impact`), and a report tells what comes after the first
failure after it. One mistake in fifty is graded by all tests as well, and must be told alike.
README.md's table is written anew. Phases or names as arguments grade those alone, and leave it:
`python -m benchmarks.truth phase1`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from benchmarks.impact import affected_exercises, ran_by_exercise
from benchmarks.outcome import Outcome, gist
from benchmarks.tally import Tally, show_in, table, tally
from gradsync.bank import Right, Wrong, reference, right_submissions, wrong_submissions
from gradsync.course import find_course
from gradsync.grading import grade
from gradsync.records import Verdict

COURSE = find_course(Path(__file__).parent)
SEED = 1
CHECKED = 50  # one in so many mistakes is graded by all tests as well
FEW = 20  # so few mistakes are each graded by all tests as well


def main(names: Sequence[str]) -> int:
    """Grade and print a table, which README.md shows if it is of all; 1 where it falls short."""
    banks = {phase: _bank(phase) for phase in COURSE.graded_phases("hidden")}
    strange = set(names) - set(banks) - {known.name for bank in banks.values() for known in bank}
    if strange:
        print(f"neither a phase nor in the bank: {', '.join(sorted(strange))}", file=sys.stderr)
        return 2
    tallies: dict[str, Tally] = {}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for phase, bank in banks.items():
            asked = [known for known in bank if not names or {known.name, phase} & set(names)]
            if asked:
                began = time.monotonic()
                outcomes = list(_graded(asked, phase, pool))
                tallies[phase] = tally(outcomes, time.monotonic() - began)
    print(f"\n{table(tallies)}")
    if not names:
        show_in(COURSE.root / "README.md", table(tallies))
    return int(not all(one.holds for one in tallies.values()))


def _bank(phase: str) -> tuple[Wrong | Right, ...]:
    """Return what is known of a phase, what takes longest first."""
    return (*right_submissions(COURSE, phase), *wrong_submissions(COURSE, phase))


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
    alike = gist(first) == gist(_first_failure(known)) if check else None
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
