"""`make truth`: grade all known submissions, and print the number of correct grades.

A submission is graded only by exercises with tests that run a function that it changes
(`checks.impact`): the other tests would run exactly the code of the solution. Grading stops at the
first test that fails, in the order of a report. One submission in a hundred is also graded by the
tests of all exercises, which must give the same first failure. Correct answers that change
different functions are graded together, and alone only if one of them fails. The script replaces
the table in docs/figures.md. With phases or names of submissions as arguments, it grades only these
and does not change docs/figures.md: `python -m checks.truth phase1`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import (
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

from checks.groups import groups, joined
from checks.impact import Functions, affected_exercises, exercises_running, ran_by_exercise
from checks.outcome import Outcome, summary
from checks.tally import table, tally, write_into
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
from gradsync.submission import Submission

Batch = Future[list[Outcome]]
COURSE = find_course(Path(__file__).parent)
SEED = 1
CHECKED = 100  # one submission in a hundred is also graded by all tests
AT_ONCE = 3 * (os.cpu_count() or 1)  # while some wait for lost ranks, others can run
HANGS = "hangs-after-a-fault"  # the code of mistakes that wait more than a minute
FEW = 20  # up to this number of submissions, each is also graded by all tests


def main(names: Sequence[str]) -> int:
    """Grade, print the table, write it into docs/figures.md without `names`; return the status."""
    banks = {phase: _bank(phase) for phase in COURSE.graded_phases("hidden")}
    unknown = set(names) - set(banks) - {known.name for bank in banks.values() for known in bank}
    if unknown:
        print(f"Not a phase or a known submission: {', '.join(sorted(unknown))}.", file=sys.stderr)
        return 2
    asked = {
        phase: [known for known in bank if not names or {known.name, phase} & set(names)]
        for phase, bank in banks.items()
    }
    began = time.monotonic()
    outcomes: dict[str, list[Outcome]] = {phase: [] for phase, some in asked.items() if some}
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:
        for outcome in _graded(asked, pool):
            print(outcome.line(), flush=True)
            outcomes[outcome.known.phase].append(outcome)
    tallies = {phase: tally(some) for phase, some in outcomes.items()}
    text = table(tallies, time.monotonic() - began)
    print(f"\n{text}")
    if not names:
        write_into(COURSE.root / "docs" / "figures.md", text)
    return int(not all(one.sufficient for one in tallies.values()))


def _bank(phase: str) -> tuple[Wrong | Right, ...]:
    return (*right_submissions(COURSE, phase), *wrong_submissions(COURSE, phase))


def _graded(asked: Mapping[str, Sequence[Wrong | Right]], pool: Executor) -> Iterator[Outcome]:
    """Grade the submissions of all phases in parallel."""
    phases = [phase for phase, some in asked.items() if some]
    bank = [known for some in asked.values() for known in some]
    # What takes longest comes first. Correct answers are sorted by name, so that complete answers
    # are not graded all at the same time: all of them would wait.
    bank.sort(key=lambda known: (isinstance(known, Wrong) and known.code != HANGS, known.name))
    checked = {known.name for known in bank[:: CHECKED if len(bank) > FEW else 1]}

    def alone(known: Wrong | Right, exercises: Sequence[str]) -> Batch:
        check = _all_exercises(known.phase) if known.name in checked else exercises
        return pool.submit(graded, known, exercises, check)

    with ThreadPoolExecutor() as threads:
        functions = threads.map(lambda phase: ran_by_exercise(COURSE, phase, SEED, pool), phases)
        jobs = [alone(each, _all_exercises(each.phase)) for each in bank if _is_whole(each)]
        ran, solution = dict(zip(phases, functions, strict=True)), reference(COURSE)
    parts = [known for known in bank if not _is_whole(known)]
    exercises = {part.name: _exercises(part, solution, ran[part.phase]) for part in parts}
    right = [part for part in parts if isinstance(part, Right) and part.name not in checked]
    for group in groups(right):
        own = [exercises[part.name] for part in group]
        jobs.append(pool.submit(graded_together, group, own))
    jobs += [alone(part, exercises[part.name]) for part in parts if part not in right]
    return (outcome for job in as_completed(jobs) for outcome in job.result())


def _is_whole(known: Wrong | Right) -> bool:
    return isinstance(known, Right) and known.whole


def _all_exercises(phase: str) -> list[str]:
    return [exercise.id for exercise in COURSE.exercises(phase)]


def _exercises(
    known: Wrong | Right, solution: Submission, ran: Mapping[str, Functions]
) -> list[str]:
    """Return the exercises that grade a mistake, or an answer with only a few definitions."""
    if isinstance(known, Wrong):
        return affected_exercises(known.submission(COURSE), solution, ran)
    return exercises_running(known.definitions, ran)


def graded(
    known: Wrong | Right, exercises: Sequence[str], check: Sequence[str] = ()
) -> list[Outcome]:
    """Grade by some exercises up to the first failure; grade again by `check` if it has more."""
    began = time.monotonic()
    first = _first_failure(known, exercises)
    seconds = time.monotonic() - began
    more = len(check) > len(exercises)
    same = summary(first) == summary(_first_failure(known, check)) if more else None
    return [Outcome(known, seconds, first, same)]


def graded_together(group: Sequence[Right], exercises: Sequence[Sequence[str]]) -> list[Outcome]:
    """Grade answers that change different functions as one; if that fails, grade each alone."""
    union = [e for e in _all_exercises(group[0].phase) if any(e in own for own in exercises)]
    [whole] = graded(joined(group), union)
    if whole.first is None:
        return [replace(whole, known=known, seconds=whole.seconds / len(group)) for known in group]
    return [one for known, own in zip(group, exercises, strict=True) for one in graded(known, own)]


def _first_failure(known: Wrong | Right, exercises: Sequence[str]) -> Verdict | None:
    """Return the first verdict of a report that is not "passed", or None."""
    report = grade(
        known.submission(COURSE),
        COURSE,
        phases=[known.phase],
        seed=SEED,
        exercises=exercises,
        parallel=1,  # several are graded at a time
        pytest_options=["--exitfirst"],
    )
    return next((verdict for verdict in report.verdicts if verdict.status != "passed"), None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
