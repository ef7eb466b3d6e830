"""Results of a small class whose names are difficult for CSV, JSON, XML and spreadsheets."""

from datetime import datetime, timezone

from gradsync.class_records import (
    ClassResults,
    ExerciseResult,
    GradedExercise,
    Override,
    Person,
    Result,
)
from gradsync.records import Diagnosis, Verdict

GRADED_AT = datetime(2026, 11, 3, 9, 30, tzinfo=timezone.utc)
HANDED_IN = datetime(2026, 11, 2, 23, 59, 1, tzinfo=timezone.utc)
NAMES = ("Ödön, Őry", 'Ann "Annie" O\'Neil', "=1+1", "+49", "Zoë\nNewline", "<b>&amp;</b>")
SUM = Diagnosis("sum-not-mean", (0, 1), "Every rank has the sum.")


def person(number, name):
    return Person(str(1000 + number), name, f"p{number}@example.org", "Tue, 10:00")


def result(name, number, **changes):
    """Return a result of 7.33 of 10 points: one exercise passed, one failed, one deadlocked."""
    exercises = (
        ExerciseResult("phase1/train_step", 5.0, 5.0),
        ExerciseResult("phase1/evaluate", 2.33, 3.33),
        ExerciseResult("phase2/ring", 0.0, 1.67),
    )
    tests = (
        Verdict("phase1/trainer::test_step", "phase1/train_step", "a.py", 5.0, 5.0, "passed", ""),
        Verdict("phase1/a::test_ü", "phase1/evaluate", "a.py", 2.33, 2.33, "passed", ""),
        Verdict(
            "phase1/a::test_b",
            "phase1/evaluate",
            "a.py",
            0.0,
            1.0,
            "failed",
            "Rank 0: 3 < 4 & 5.\x1b[31m\x00",
            SUM,
        ),
        Verdict(
            "phase2/r::test_c",
            "phase2/ring",
            "a.py",
            0.0,
            1.67,
            "deadlock",
            "Rank 1 waits.\nAt a.py:3.",
        ),
    )
    content = {
        "status": "graded",
        "score": 7.33,
        "max_score": 10.0,
        "phases": {"phase1": 7.33, "phase2": 0.0},
        "exercises": exercises,
        "tests": tests,
        "person": person(number, name),
        "seconds": 13.25,
        "handed_in": HANDED_IN,
    }
    return Result(submission=name, **(content | changes))


OVERRIDDEN = ExerciseResult(
    "phase2/ring",
    1.67,
    1.67,
    (Override("ann", "phase2/ring", 1.67, "the ring is right", "Prof. Ö"),),
)
GRADED = tuple(result(name, number) for number, name in enumerate(NAMES))
LATE = result("late", 7, score=6.33, days_late=1.0, days_charged=1, points_lost=1.0)
UNSAFE = result("unsafe", 8, sandboxed=False)
CORRECTED = result("corrected", 9, score=9.0, exercises=(*GRADED[0].exercises[:2], OVERRIDDEN))
UNREADABLE = Result("broken", "unreadable", 0.0, 10.0, notes=("It is not a zip.",))
FAILED = Result("unlucky", "grader-failed", notes=("The machine went down.",))
MISSING = Result("1999", "missing", person=Person("1999", "Nobody, N.", "n@example.org"))
STRANGER = result("@stranger", 10, person=None)
CLASS = ClassResults(
    title="Training, part 1",
    phases=("phase1", "phase2"),
    exercises=(
        GradedExercise("phase1/train_step", "train_step", "Steps", 5.0),
        GradedExercise("phase1/evaluate", "evaluate", "Evaluation", 3.33),
        GradedExercise("phase2/ring", "ring", "Rings", 1.67),
    ),
    results=(*GRADED, LATE, UNSAFE, CORRECTED, UNREADABLE, FAILED, MISSING, STRANGER),
    seed=7,
    graded_at=GRADED_AT,
)
WITH_SCORE = [each for each in CLASS.results if each.score is not None]
