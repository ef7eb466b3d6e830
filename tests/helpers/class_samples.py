"""A sample class to render, with submissions in every possible state."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from gradsync.class_records import (
    ClassResults,
    ExerciseResult,
    Facts,
    GradedExercise,
    Override,
    Person,
    Result,
)
from gradsync.records import Diagnosis, Verdict

EXERCISES = (
    GradedExercise("phase1/PaddedDistributedSampler", "PaddedDistributedSampler", "Data", 10.0),
    GradedExercise("phase1/average_gradients", "average_gradients", "Gradients", 10.0),
    GradedExercise("phase2/ring_all_reduce", "ring_all_reduce", "The ring", 20.0),
)
MISTAKES = {
    "phase1/PaddedDistributedSampler": ("padding-wrong", "epoch-ignored"),
    "phase1/average_gradients": ("sum-not-mean", "deadlock-rank-missing"),
    "phase2/ring_all_reduce": ("deadlock-order-differs", "exception"),
}


def outcome(
    exercise: str, points: float, most: float, code: str = "", status: Any = None, **more: Any
) -> Verdict:
    """Return the result of a test, which failed if a mistake's code is given."""
    known = Diagnosis(code, (0, 1), f"This is what {code} means.") if code else None
    status = status or ("failed" if code else "passed")
    guide = next((each.guide for each in EXERCISES if each.id == exercise), "")
    fields = {"message": "", "diagnosis": known, "guide": guide, **more}
    return Verdict(f"{exercise}::test", exercise, "a.py", points, most, status, **fields)


def result(submission: str, *tests: Verdict, **more: Any) -> Result:
    """Return a graded result with these tests, one for each exercise."""
    exercises = tuple(ExerciseResult(t.exercise, t.points, t.max_points) for t in tests)
    phases: dict[str, float] = {}
    for test in tests:
        phases[test.phase] = phases.get(test.phase, 0.0) + test.points
    fields = {
        "status": "graded",
        "score": sum(test.points for test in tests),
        "max_score": sum(test.max_points for test in tests),
        "phases": phases,
        "exercises": exercises,
        "tests": tests,
        "seconds": 12.5,
        "folder": submission,
    }
    return Result(submission, **{**fields, **more})


def class_of(*results: Result, **more: Any) -> ClassResults:
    """Return the results of a class."""
    phases, seed = ("phase1", "phase2"), 7
    fields = {"title": "Parallel training", "phases": phases, "exercises": EXERCISES, "seed": seed}
    return ClassResults(**{**fields, **more, "results": results})


def sample_class(size: int, tests: int = 1) -> ClassResults:
    """Return a class of this size, with `tests` tests for each exercise."""
    draw = random.Random(7)
    results = [_learner(number, tests, draw) for number in range(size)]
    absent = Person("z9", "Nobody Here", "nobody@example.org")
    results.append(Result("z9", "missing", person=absent))
    results.append(Result("yy-broken", "grader-failed", notes=("no space left on device",)))
    unreadable = {"score": 0.0, "max_score": 40.0, "folder": "zip", "seconds": 0.1}
    results.append(Result("zip", "unreadable", notes=("unreadable: not an archive",), **unreadable))
    graded_at = datetime(2026, 11, 2, 14, 5, tzinfo=timezone.utc)
    return class_of(*results, graded_at=graded_at, warnings=("overrides.csv: line 3 is ignored.",))


def _learner(number: int, tests: int, draw: random.Random) -> Result:
    name = f"student{number:04}"
    made = [_test(exercise, tests, draw) for exercise in EXERCISES for _ in range(tests)]
    person = Person(f"s{number}", f"{draw.choice(FIRST)} {draw.choice(LAST)}", section="A")
    seconds = round(draw.gauss(13, 1.5), 2) if number % 37 else 95.0
    learner = result(name, *made, person=person, seconds=seconds)
    learner = replace(learner, exercises=_exercises(learner, number))
    if number % 9 == 0:
        handed_in = datetime(2026, 11, 1, 18, 30, tzinfo=timezone.utc) + timedelta(hours=number)
        late = {"days_late": 1.5, "days_charged": 2, "points_lost": 2.0, "handed_in": handed_in}
        learner = replace(learner, **late, facts=Facts(name, name, attempt=2, attempts=3))
    return learner


def _exercises(learner: Result, number: int) -> tuple[ExerciseResult, ...]:
    sums: dict[str, list[float]] = {}
    for test in learner.tests:
        points = sums.setdefault(test.exercise, [0.0, 0.0])
        points[0] += test.points
        points[1] += test.max_points
    override = Override(learner.submission, EXERCISES[1].id, 8.0, "The line was right.", "Noether")
    return tuple(
        ExerciseResult(name, 8.0, most, (override,))
        if number % 50 == 3 and name == EXERCISES[1].id
        else ExerciseResult(name, points, most)
        for name, (points, most) in sums.items()
    )


def _test(exercise: GradedExercise, tests: int, draw: random.Random) -> Verdict:
    most = exercise.max_points / tests
    chance = draw.random()
    if chance < 0.72:
        return outcome(exercise.id, most, most)
    if chance < 0.8:
        return outcome(exercise.id, 0.0, most, status="unfinished")
    return outcome(exercise.id, 0.0, most, draw.choice(MISTAKES[exercise.id]))


FIRST = ("Ada", "Emmy", "Alan", "Grace", "Linus", "Barbara", "Edsger", "Sofja", "Srinivasa")
LAST = ("Lovelace", "Noether", "Turing", "Hopper", "Müller-Lüdenscheidt", "Kowalewskaja", "Ng")
