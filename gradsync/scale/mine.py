"""Run a course's probe of averaging with a learner's files, and with torch's DDP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradsync.course.catalogue import Course, CourseError
from gradsync.course.support import AVERAGING, command_module, support_of
from gradsync.grading.suite.suite_ranks import SuiteRanks, unsuite_ranks
from gradsync.grading.suite.verdicts import MissingFile
from gradsync.ranks import RankFailure, get_launcher
from gradsync.scale.averagers import StepFigures, figures, median_of
from gradsync.submission import Submission
from gradsync.temporary_folders import unpacked

SECONDS = 60.0  # for one averager, in one turn
RANKS = 2
TURNS = 5  # on a noisy machine, only runs right after each other can be compared


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
                ranks = unsuite_ranks(submission, folder, course, phase, seed=AVERAGING)
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
    alone = SuiteRanks(get_launcher(), None, None, "", seen=[], seed=AVERAGING)
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
