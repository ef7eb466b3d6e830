"""Compare a learner's averagers with torch's DDP, in a course's probe of averaging.

The figures of a training step come from the events of a run; barriers separate the steps.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradsync.course.catalogue import Course, CourseError
from gradsync.course.support import AVERAGING, command_module, support_of
from gradsync.grading.suite.learner_files import LearnerFiles
from gradsync.grading.suite.suite_ranks import SuiteRanks
from gradsync.grading.suite.verdicts import MissingFile
from gradsync.ranks import RankFailure, get_launcher
from gradsync.ranks.deadlocks.calls import bytes_of
from gradsync.records import Observation
from gradsync.reports.timeline import spans
from gradsync.reports.timeline.lanes import Bar, bars
from gradsync.reports.timeline.spans import Span
from gradsync.submission import Submission
from gradsync.temporary_folders import unpacked

SECONDS = 60.0  # for one averager, in one turn
RANKS = 2
TURNS = 5  # on a noisy machine, only runs right after each other can be compared
WARM = 3  # steps that are left out, because DDP rebuilds its buckets in the second one
RECEIVES = "recv"


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Medians over the steps of one or more runs, of the slowest rank."""

    name: str
    seconds: float  # of a step
    collectives: int  # in a step
    bytes: int  # passed to collectives in a step, on one rank
    hidden: float | None  # part of the communication time in which the rank computed


@dataclass(frozen=True, slots=True)
class Compared:
    """A learner's averager, compared with DDP."""

    figures: StepFigures  # medians over the turns
    ratios: tuple[float, ...]  # of each turn: the time of a step divided by DDP's


@dataclass(frozen=True, slots=True)
class Comparison:
    """A learner's averagers, compared with DDP."""

    reference: StepFigures
    mine: tuple[Compared, ...]
    failures: dict[str, str]  # by name: the reason why there are no figures


def compare(
    submission: Submission, course: Course, progress: Callable[[str], object]
) -> Comparison:
    """Measure DDP and the averagers of all phases in the course's probe, in turns.

    Raises:
        CourseError: the course has no such probe.
        RankFailure: DDP itself failed.
    """
    turns: list[StepFigures] = []
    mine: dict[str, list[StepFigures]] = {}
    failures: dict[str, str] = {}
    with support_of(course.root), unpacked(submission.files) as folder:
        probe = command_module(course.root, AVERAGING, "the averagers to measure")
        for turn in range(1, TURNS + 1):
            progress(f"measuring {probe.REFERENCE[0]}, turn {turn} of {TURNS}")
            turns.append(_measure_reference(course, *probe.REFERENCE))
            for phase, (name, function) in probe.AVERAGERS.items():
                if name in failures:
                    continue
                progress(f"measuring {name}, turn {turn} of {TURNS}")
                files = LearnerFiles(folder, course, phase, submission.refused)
                ranks = SuiteRanks(get_launcher(), files, seed=AVERAGING)
                found = _measure(name, ranks, function)
                if isinstance(found, str):
                    failures[name] = found
                else:
                    mine.setdefault(name, []).append(found)
    compared = (_compared(runs, turns) for name, runs in mine.items() if name not in failures)
    return Comparison(median_of(turns), tuple(compared), failures)


def _compared(runs: Sequence[StepFigures], turns: Sequence[StepFigures]) -> Compared:
    ratios = (run.seconds / ddp.seconds for run, ddp in zip(runs, turns, strict=True))
    return Compared(median_of(runs), tuple(ratios))


def _measure_reference(course: Course, name: str, function: Callable[[], object]) -> StepFigures:
    alone = SuiteRanks(get_launcher(), None, seed=AVERAGING)
    found = figures(name, alone(function, RANKS, timeout=SECONDS), files=False)
    if found is None:
        raise CourseError(f"{AVERAGING} of {course.root} has no barriers between its steps.")
    return found


def _measure(name: str, ranks: SuiteRanks, function: Callable[..., Any]) -> StepFigures | str:
    """Return the figures of an averager, or the reason why there are none."""
    try:
        found = figures(name, ranks(function, RANKS, timeout=SECONDS))
    except MissingFile as missing:
        return str(missing)
    except RankFailure as failed:
        failure = failed.observation.failure
        return failure.diagnosis.explanation if failure else str(failed)
    return found or "The events of the run do not show its steps."


def figures(name: str, seen: Observation, *, files: bool = True) -> StepFigures | None:
    """Return the figures of a run, or None if its events do not show enough steps.

    Args:
        name: the name in the table.
        seen: the run.
        files: whether the run used a learner's files, whose own barriers do not separate steps.
    """
    by_rank = [_of_rank(name, seen, rank, files) for rank in range(seen.world_size)]
    complete = [found for found in by_rank if found is not None]
    if len(complete) < seen.world_size:
        return None
    return max(complete, key=lambda found: found.seconds)


def median_of(runs: Sequence[StepFigures]) -> StepFigures:
    """Return the medians of several runs of the same averager."""
    hidden = [run.hidden for run in runs if run.hidden is not None]
    return StepFigures(
        runs[0].name,
        statistics.median(run.seconds for run in runs),
        round(statistics.median(run.collectives for run in runs)),
        round(statistics.median(run.bytes for run in runs)),
        statistics.median(hidden) if hidden else None,
    )


def _of_rank(name: str, seen: Observation, rank: int, files: bool) -> StepFigures | None:
    mine = [bar for bar in bars(seen.events, seen.world_size) if bar.rank == rank]
    barriers = [bar for bar in mine if bar.collective.op == "barrier"]
    between = [bar for bar in barriers if bar.collective.by_test or not files]
    steps = [
        (before.end, after.start)
        for before, after in itertools.pairwise(between)
        if before.end is not None
    ][WARM:]
    if not steps:
        return None
    others = [bar for bar in mine if bar not in between]
    waits = spans.blocked(seen.events, rank)
    inside = [[bar for bar in others if start <= bar.start < end] for start, end in steps]
    hidden = [
        _hidden(called, waits, step) for called, step in zip(inside, steps, strict=True) if called
    ]
    return StepFigures(
        name,
        statistics.median(end - start for start, end in steps),
        round(statistics.median(map(len, inside))),
        round(statistics.median(map(_bytes, inside))),
        statistics.median(hidden) if hidden else None,
    )


def _bytes(called: Sequence[Bar]) -> int:
    return sum(bytes_of(bar.collective) for bar in called if bar.collective.op != RECEIVES)


def _hidden(called: Sequence[Bar], waits: Sequence[Span], step: Span) -> float:
    """Return the part of the collectives' time in a step in which the main thread did not wait."""
    under_way = _cut([(bar.start, step[1] if bar.end is None else bar.end) for bar in called], step)
    busy = spans.joined(under_way)
    exposed = sum(_length(_cut(waits, span)) for span in busy)
    return 1 - exposed / max(_length(busy), 1e-9)


def _cut(found: Sequence[Span], limits: Span) -> list[Span]:
    """Return the parts of the spans that are within the limits."""
    cut = [(max(start, limits[0]), min(end, limits[1])) for start, end in found]
    return [(start, end) for start, end in cut if start < end]


def _length(found: Sequence[Span]) -> float:
    return sum(end - start for start, end in found)
