"""Run a course's probe of averaging with a learner's files, and with torch's DDP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradsync.course.catalogue import Course, CourseError
from gradsync.course.support import AVERAGING, command_module, support_of
from gradsync.grading.suite.graded_ranks import GradedRanks, ungraded_ranks
from gradsync.grading.suite.verdicts import MissingFile
from gradsync.ranks import RankFailure, get_launcher
from gradsync.scale.averagers import StepFigures, figures
from gradsync.submission import Submission
from gradsync.temporary_folders import unpacked

SECONDS = 60.0  # for one averager
RANKS = 2


@dataclass(frozen=True, slots=True)
class Comparison:
    """A learner's averagers beside DDP."""

    reference: StepFigures
    mine: tuple[StepFigures, ...]
    failures: dict[str, str]  # by name: why there are no figures


def compare(
    submission: Submission, course: Course, progress: Callable[[str], object]
) -> Comparison:
    """Measure the averagers of all phases that the course's probe knows, and DDP.

    Raises:
        CourseError: the course has no such probe.
        RankFailure: DDP itself failed.
    """
    mine, failures = [], {}
    with support_of(course.root), unpacked(submission.files) as folder:
        probe = command_module(course.root, AVERAGING, "what to measure")
        name, function = probe.REFERENCE
        progress(f"measuring {name}")
        alone = GradedRanks(get_launcher(), None, None, "", seen=[], seed=AVERAGING)
        reference = figures(name, alone(function, RANKS, timeout=SECONDS), files=False)
        if reference is None:
            raise CourseError(f"{AVERAGING} of {course.root} puts no barriers between its steps.")
        for phase, (name, function) in probe.AVERAGERS.items():
            progress(f"measuring {name}")
            ranks = ungraded_ranks(submission, folder, course, phase, seed=AVERAGING)
            found = _measure(name, ranks, function)
            if isinstance(found, str):
                failures[name] = found
            else:
                mine.append(found)
    return Comparison(reference, tuple(mine), failures)


def _measure(name: str, ranks: GradedRanks, function: Callable[..., Any]) -> StepFigures | str:
    """Return the figures of an averager, or why there are none."""
    try:
        found = figures(name, ranks(function, RANKS, timeout=SECONDS))
    except MissingFile as missing:
        return str(missing)
    except RankFailure as failed:
        failure = failed.observation.failure
        return failure.diagnosis.explanation if failure else str(failed)
    return found or "Its events do not show the steps."
