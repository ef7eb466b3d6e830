"""Observe a few steps of a learner's trainer on N ranks, and draw them."""

from __future__ import annotations

from pathlib import Path

from gradsync.course import whole_files
from gradsync.course.catalogue import Course
from gradsync.course.support import TRACED, command_module, support_of
from gradsync.grading.suite.learner_files import LearnerFiles
from gradsync.grading.suite.suite_ranks import SuiteRanks
from gradsync.ranks import RankFailure, get_launcher
from gradsync.records import Observation
from gradsync.reports.timeline import chrome_trace, overlap
from gradsync.submission import Submission
from gradsync.temporary_folders import unpacked

SECONDS = 120.0


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


def write_trace(seen: Observation, out: Path) -> tuple[Path, Path]:
    """Write a run as a picture, `out`.svg, and as a trace for Perfetto, `out`.json."""
    picture, trace = (out.with_name(out.name + ending) for ending in (".svg", ".json"))
    out.parent.mkdir(parents=True, exist_ok=True)
    whole_files.write_whole(picture, overlap.render(seen.events, seen.world_size).encode())
    whole_files.write_whole(trace, chrome_trace.render(seen.events, seen.world_size).encode())
    return picture, trace
