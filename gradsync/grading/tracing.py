"""Observe a few steps of a learner's trainer, or a step of a pipeline, on N ranks, and draw it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

from gradsync.course import whole_files
from gradsync.course.catalogue import Course, CourseError
from gradsync.course.support import TRACED, command_module, support_of
from gradsync.grading.suite.learner_files import LearnerFiles
from gradsync.grading.suite.suite_ranks import SuiteRanks
from gradsync.ranks import RankFailure, get_launcher
from gradsync.records import Observation
from gradsync.reports.timeline import chrome_trace, overlap, passes, steps
from gradsync.submission import Submission
from gradsync.temporary_folders import unpacked

SECONDS = 120.0
DRAWN = 2  # steps in the picture: in more, names don't fit into the bars


@dataclass(frozen=True)
class Trace:
    """What the ranks did, and the number of training steps in it; 0 for a step of a pipeline."""

    seen: Observation
    steps: int

    def picture(self) -> str:
        """Return an SVG of the last two steps, or else of the whole run."""
        if not self.steps:
            return passes.render(self._schedule())
        seen = self.seen
        found = steps.steps_of(seen.events, seen.world_size, self.steps)
        named = [(f"step {number}", span) for number, span in enumerate(found, 1)][-DRAWN:]
        return overlap.render(seen.events, seen.world_size, named)

    def sentences(self) -> list[str]:
        """Return where the time goes."""
        if not self.steps:
            return passes.sentences(self._schedule())
        seen = self.seen
        found = steps.steps_of(seen.events, seen.world_size, self.steps)
        return steps.sentences(seen.events, seen.world_size, found)

    def write(self, out: Path) -> tuple[Path, Path]:
        """Write the picture, `out`.svg, and the trace for Perfetto, `out`.json; return both."""
        picture, trace = (out.with_name(out.name + ending) for ending in (".svg", ".json"))
        events = chrome_trace.render(self.seen.events, self.seen.world_size)
        whole_files.write_whole(picture, self.picture().encode())
        whole_files.write_whole(trace, events.encode())
        return picture, trace

    def _schedule(self) -> passes.Schedule:
        return [list(itertools.starmap(passes.Pass, mine or ())) for mine in self.seen]


def trace(
    submission: Submission, course: Course, phase: str, world_size: int, *, pipeline: bool = False
) -> Trace:
    """Run the course's probe for traces with the submission's files.

    Returns:
        The trace, even if the ranks failed.

    Raises:
        CourseError: the course has no such probe, or the phase no pipeline.
        MissingFile: the submission lacks the file for it.
    """
    with support_of(course.root), unpacked(submission.files) as folder:
        probes = command_module(course.root, TRACED, "what to trace")
        traced = probes.pipeline_of(phase) if pipeline else probes.training_of(phase, world_size)
        if traced is None:
            raise CourseError(f"{phase} has no pipeline. Name another one with --phase.")
        files = LearnerFiles(folder, course, phase, submission.refused)
        ranks = SuiteRanks(get_launcher(), files, seed="trace")
        try:
            seen = ranks(traced.run, world_size, timeout=SECONDS, **traced.inputs)
        except RankFailure as failed:
            seen = failed.observation
        return Trace(seen, traced.steps)
