"""The parts of a result that all exports share: a line for each exercise, and a summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from gradsync.class_records import ExerciseResult, Result
from gradsync.records import Verdict
from gradsync.reports.corrections import charged_text, correction_text
from gradsync.reports.text import amount, finite, printable
from gradsync.text import counted, full_stop

LineStatus = Literal["passed", "failed", "error"]
NO_SANDBOX = (
    "Graded without a sandbox, because this machine or container can't create one. Points come "
    "only from values that the grader compared. Apart from that, nothing is guaranteed: the "
    "submission ran with the grader's rights, so it could read all files of this container, "
    "including the hidden tests, and change the files that the grader writes."
)
# Statuses of tests that did not reach a comparison of values.
ERRORS = ("error", "crashed", "timeout", "deadlock")


@dataclass(frozen=True, slots=True)
class Line:
    """An exercise in an export."""

    exercise: str  # "phase1/NAME"
    name: str  # "phase1: NAME"
    points: float
    max_points: float
    status: LineStatus
    text: str  # corrections and comments of staff, and why points are missing
    by_staff: str  # of it, what staff wrote


def lines_of(result: Result) -> list[Line]:
    """Return a line for each exercise of a result, in the order of the course."""
    tests: dict[str, list[Verdict]] = {}
    for test in result.tests:
        tests.setdefault(test.exercise, []).append(test)
    return [_line(each, tests.get(each.exercise, [])) for each in result.exercises]


def score_text(result: Result) -> str:
    """Return "7 of 10 points", or "7 of 10 points so far" if staff still have to grade a part."""
    points = f"{amount(result.score or 0.0)} of {amount(result.max_score or 0.0)} points"
    return points + " so far" * any(each.is_waiting for each in result.exercises)


def summary_of(result: Result) -> str:
    """Return facts about the result as a whole, one on each line: lateness, corrections, notes."""
    facts = []
    if result.status == "missing":
        facts.append("Nothing was handed in.")
    elif result.status == "not-graded":
        facts.append("Not graded yet.")
    elif result.status == "unreadable":
        facts.append("Nothing could be graded.")
    elif result.status == "grader-failed":
        facts.append("The grader itself failed, so there is no score.")
    if result.points_lost:
        facts.append(f"Points lost by lateness: {charged_text(result)}.")
    facts += [correction_text(each) for each in result.total]
    attempt, attempts = result.facts.attempt, result.facts.attempts
    if attempt is not None and attempts > 1:
        facts.append(f"Attempt {attempt} of {counted(attempts, 'attempt')} counts.")
    notes = [full_stop(note.removeprefix("unreadable: ")) for note in result.notes]
    return "\n".join(printable(fact) for fact in (*facts, *notes))


def next_step(result: Result) -> str:
    """Return what to correct first: the mistake, its line and the command for a hint; or ""."""
    lost = {each.exercise for each in result.exercises if each.points < each.max_points}
    failing = (test for test in result.tests if test.diagnosis and test.exercise in lost)
    test = next(failing, None) if result.status == "graded" else None
    if test is None or test.diagnosis is None:
        return ""
    where = f" at {printable(test.diagnosis.where)}" if test.diagnosis.where else ""
    name = test.exercise.rpartition("/")[2]
    text = " ".join(printable(test.diagnosis.explanation).split())
    code = "" if test.status == "unfinished" else f" ({test.diagnosis.code}{where})"
    return f"Begin with {name}{code}: {full_stop(text)} For a hint: gradsync hint {test.exercise}"


def whole_points(
    parts: Sequence[float], total: float, caps: Sequence[int] | None = None
) -> list[int]:
    """Return integers in proportion to `parts`, with the rounded `total` as their sum.

    Args:
        parts: points that may have fractions.
        total: the wanted sum; it is less than the sum of `parts` if points were lost by lateness.
        caps: the most for each; None sets no limit.
    """
    whole, target = sum(parts), round(total)
    if whole <= 0:
        return [0] * len(parts)
    most = [target] * len(parts) if caps is None else list(caps)
    shares = [part * target / whole for part in parts]
    points = [min(int(share), cap) for share, cap in zip(shares, most, strict=True)]
    # The largest fractions are rounded up, so that the sum is right.
    for at in sorted(range(len(parts)), key=lambda at: points[at] - shares[at]) * 2:
        if sum(points) < target and points[at] < most[at]:
            points[at] += 1
    return points


def _line(each: ExerciseResult, tests: Sequence[Verdict]) -> Line:
    phase, _, name = each.exercise.partition("/")
    failing = [test for test in tests if test.status != "passed"]
    texts = list(dict.fromkeys(printable(test.message).strip() for test in failing))
    by_staff = " ".join(map(correction_text, each.corrections))
    if each.is_waiting:
        by_staff = f"Not graded yet. {by_staff}".rstrip()
    status: LineStatus = "failed"
    if each.points >= each.max_points:
        status = "passed"
    elif failing and failing[0].status in ERRORS:
        status = "error"
    return Line(
        exercise=each.exercise,
        name=f"{phase}: {name}",
        points=finite(each.points),
        max_points=finite(each.max_points),
        status=status,
        text="\n\n".join(text for text in (by_staff, *texts) if text),
        by_staff=by_staff,
    )
