"""Small sample reports to render; tests override single fields."""

from __future__ import annotations

from typing import Any

from gradsync.records import Collective, Diagnosis, Event, Report, Verdict

SCRIPT = "<script>alert(1)</script>"

SUM_NOT_MEAN = Diagnosis(
    "sum-not-mean",
    (0, 1, 2, 3),
    "every rank has 4 times the mean",
    "template_trainer.py:94",
    "Gradient aggregation",
)


def verdict(name: str = "average_gradients", status: Any = "passed", **more: Any) -> Verdict:
    """Return a verdict on the exercise `name` of phase 1, with one point if it is passed."""
    fields = {
        "id": f"phase1/trainer::test_{name}",
        "exercise": f"phase1/{name}",
        "points": 1.0 if status == "passed" else 0.0,
        "max_points": 1.0,
        "status": status,
        "message": "" if status == "passed" else f"{name} went wrong",
        "file": "phase1/template_trainer.py",
        "title": f"{name} does what it should.",
    }
    return Verdict(**{**fields, **more})


def report(*verdicts: Verdict, submission: str = "ada", **more: Any) -> Report:
    return Report(submission, **{"seed": 7, "seconds": 3.2, **more}, verdicts=verdicts)


def collective(op: str = "all_reduce", **more: Any) -> Collective:
    fields = {
        "group": "world",
        "members": (0, 1, 2, 3),
        "shapes": ((10,),),
        "dtype": "float32",
        "reduce": "SUM",
        "where": "template_trainer.py:91",
    }
    return Collective(op, **{**fields, **more})


def call(
    rank: int, number: int, start: float, end: float | None, what: Collective | None = None
) -> list[Event]:
    """Return the events of one collective on one rank; without an `end` it never completes."""
    entered = Event(rank, "enter", number, start, 1, collective=what or collective())
    return [entered] if end is None else [entered, Event(rank, "exit", number, end, 1)]


def deadlock(missing: int = 1) -> tuple[Event, ...]:
    """Return the events of four ranks: in the fourth round, one rank is missing and others wait."""
    events = []
    for round_ in range(3):
        start = 0.040 + 0.002 * round_
        for rank in range(4):
            events += call(rank, round_, start + 0.0001 * rank, start + 0.001)
    stuck = collective(label="fc2.bias.grad")
    for rank in set(range(4)) - {missing}:
        events += call(rank, 3, 0.046, None, stuck)
    return tuple(events)


def long_run(rounds: int = 30) -> tuple[Event, ...]:
    """Return the events of four ranks whose timeline is wider than a page."""
    return tuple(
        event
        for number in range(rounds)
        for rank in range(4)
        for event in call(rank, number, 0.04 + 0.002 * number, 0.041 + 0.002 * number)
    )
