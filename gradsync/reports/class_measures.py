"""Measure the results of a class: scores, times, success in each exercise, and unusual results."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from gradsync.class_records import ClassResults, GradedExercise, Result
from gradsync.reports.text import amount, round_step

FEWEST = 8  # quartiles of fewer numbers mean nothing
FACTOR = 1.5
UNWRITTEN = ("unfinished", "missing")  # statuses of a test without an attempt to solve it
_STEPS = 10  # bars of a chart
_ROUNDING = 1e-6  # points


@dataclass(frozen=True, slots=True)
class Fences:
    """The limits outside of which a number is unusual."""

    low: float
    high: float

    def exclude(self, number: float) -> bool:
        return not self.low <= number <= self.high


def fences(numbers: Sequence[float], narrowest: float) -> Fences | None:
    """Return the limits for these numbers, or None if they are too few.

    The limits are 1.5 interquartile ranges below the first and above the third quartile. If more
    than half of the numbers are nearly equal, this range is close to 0 and would make every other
    number unusual. So it counts as at least `narrowest`.
    """
    if len(numbers) < FEWEST:
        return None
    first, _, third = quantiles(numbers, n=4, method="inclusive")
    margin = FACTOR * max(third - first, narrowest)
    return Fences(first - margin, third + margin)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart, with its length as a share of the longest one."""

    label: str
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class Success:
    """The results of a class in one exercise."""

    exercise: GradedExercise
    graded: int  # number of submissions with a result in it
    solved: int  # with all points
    unwritten: int  # with nothing written
    mean: float  # share of the points, from 0 to 1


@dataclass(frozen=True, slots=True)
class Spread:
    """The minimum, mean, median and maximum of some numbers."""

    least: float
    mean: float
    median: float
    most: float


def graded(results: Iterable[Result]) -> list[Result]:
    """Return the results that are graded and have possible points above 0."""
    return [result for result in results if result.status == "graded" and result.max_score]


def percent(result: Result) -> float:
    """Return the share of the points of a graded result, in percent."""
    return 100 * (result.score or 0.0) / (result.max_score or 1.0)


def spread(numbers: Sequence[float]) -> Spread | None:
    """Return the spread of some numbers, or None if there are none."""
    if not numbers:
        return None
    return Spread(min(numbers), fmean(numbers), median(numbers), max(numbers))


def score_bars(results: Sequence[Result]) -> list[Bar]:
    """Return how many graded results have 0-9%, 10-19%, ... and 90-100% of the points."""
    counts = Counter(min(max(int(percent(result) // 10), 0), 9) for result in results)
    labels = [f"{low}–{low + 9}%" for low in range(0, 90, 10)] + ["90–100%"]
    return _bars(labels, [counts[index] for index in range(10)])


def time_bars(seconds: Sequence[float], fences: Fences | None) -> list[Bar]:
    """Return the number of gradings by duration; unusually long ones share the last bar."""
    if not seconds:
        return []
    end = max(seconds) if fences is None else min(max(seconds), fences.high)
    step = round(round_step(max(end / _STEPS, 0.1)), 6)
    counts = Counter(min(int(time / step), int(end / step) + 1) for time in seconds)
    last = max(counts)
    labels = [f"{amount(i * step)}–{amount((i + 1) * step)} s" for i in range(last + 1)]
    if max(seconds) >= (last + 1) * step:
        labels[last] = f"{amount(last * step)} s or more"
    return _bars(labels, [counts[index] for index in range(last + 1)])


def successes(results: ClassResults) -> list[Success]:
    """Return the success in each exercise that was graded, the least successful first."""
    shares: dict[str, list[float]] = defaultdict(list)
    solved: Counter[str] = Counter()
    unwritten: Counter[str] = Counter()
    for result in graded(results.results):
        written = {test.exercise for test in result.tests if test.status not in UNWRITTEN}
        for each in result.exercises:
            if each.max_points > 0 and not each.is_waiting:
                shares[each.exercise].append(each.points / each.max_points)
                solved[each.exercise] += each.points >= each.max_points - _ROUNDING
                unwritten[each.exercise] += each.exercise not in written and not each.override
    found = [
        Success(
            exercise=exercise,
            graded=len(shares[exercise.id]),
            solved=solved[exercise.id],
            unwritten=unwritten[exercise.id],
            mean=fmean(shares[exercise.id]),
        )
        for exercise in results.exercises
        if shares[exercise.id]
    ]
    return sorted(found, key=lambda success: success.mean)


def _bars(labels: Sequence[str], counts: Sequence[int]) -> list[Bar]:
    longest = max(*counts, 1)
    return [Bar(label, n, n / longest) for label, n in zip(labels, counts, strict=True)]
