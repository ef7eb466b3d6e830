"""Observe a few steps of a learner's trainer on N ranks, and draw them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gradsync.course import whole_files
from gradsync.course.catalogue import Course
from gradsync.course.support import TRACED, command_module, support_of
from gradsync.grading.suite.learner_files import LearnerFiles
from gradsync.grading.suite.suite_ranks import SuiteRanks
from gradsync.ranks import RankFailure, get_launcher
from gradsync.records import Observation
from gradsync.reports.timeline import chrome_trace, overlap, steps
from gradsync.reports.timeline.spans import Span
from gradsync.submission import Submission
from gradsync.temporary_folders import unpacked

SECONDS = 120.0
DRAWN = 2  # steps in the picture: in more, names don't fit into the bars


def trace(submission: Submission, course: Course, phase: str, world_size: int) -> Observation:
    """Run the course's probe for traces with the submission's files.

    Returns:
        The observation, even if the ranks failed.

    Raises:
        CourseError: the course has no such probe.
        MissingFile: the submission has no trainer for this phase.
    """
    with support_of(course.root), unpacked(submission.files) as folder:
        probe = command_module(course.root, TRACED, "what to trace")
        files = LearnerFiles(folder, course, phase, submission.refused)
        ranks = SuiteRanks(get_launcher(), files, seed="trace")
        try:
            return ranks(probe.run, world_size, timeout=SECONDS, **probe.inputs_of(world_size))
        except RankFailure as failed:
            return failed.observation


def steps_of(seen: Observation, course: Course) -> list[Span]:
    """Return the times of the steps in a trace, or [] if they can't be told apart."""
    with support_of(course.root):
        count = getattr(command_module(course.root, TRACED, "what to trace"), "STEPS", 0)
    return steps.steps_of(seen.events, seen.world_size, count) if count else []


def write_trace(seen: Observation, found: Sequence[Span], out: Path) -> tuple[Path, Path]:
    """Write a run as a picture, `out`.svg, and as a trace for Perfetto, `out`.json.

    The picture has the last two of the steps that were `found`, or else the whole run.
    """
    named = [(f"step {number}", span) for number, span in enumerate(found, 1)][-DRAWN:]
    picture, trace = (out.with_name(out.name + ending) for ending in (".svg", ".json"))
    out.parent.mkdir(parents=True, exist_ok=True)
    whole_files.write_whole(picture, overlap.render(seen.events, seen.world_size, named).encode())
    whole_files.write_whole(trace, chrome_trace.render(seen.events, seen.world_size).encode())
    return picture, trace
