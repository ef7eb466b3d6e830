"""The commands that a learner runs most: `gradsync --help`, `check`, `doctor`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure, in_turns, median_seconds, seconds, shown
from gradsync.course.catalogue import Course, find_course
from gradsync.course.release.publish import publish

TIMES = 7


def figures() -> Iterator[Figure]:
    """Measure complete commands in a learner's copy of the course, with all phases solved."""
    course = find_course()
    with tempfile.TemporaryDirectory() as folder:
        copy = _solved_copy(course, Path(folder) / "course")
        yield _limited("gradsync --help", copy, ["--help"], 0.2)
        for phase in course.phases:
            yield _slowest_check(course, phase, copy)
            yield _limited(f"gradsync check {phase}", copy, ["check", phase], 10)
        yield _limited("gradsync doctor", copy, ["doctor"], 3)
        yield _limited("gradsync doctor --launch", copy, ["doctor", "--launch"], 5)


def _solved_copy(course: Course, folder: Path) -> Path:
    """Write a learner's copy of the course that contains the solutions."""
    publish(course, folder, None, archive=False)
    for phase in course.phases:
        for file in course.files(phase):
            shutil.copy(course.root / "solutions" / phase / file, folder / phase / file)
    return folder


def _slowest_check(course: Course, phase: str, copy: Path) -> Figure:
    """Measure the exercise whose check takes longest in a first round."""

    def run(exercise: str) -> float:
        return _run(copy, "-m", "gradsync", "check", exercise)

    slowest = max((exercise.id for exercise in course.exercises(phase)), key=run)
    check, alone = in_turns(
        lambda: run(slowest), lambda: _run(copy, "-c", "import torch"), times=TIMES
    )
    return Figure(
        f"gradsync check {slowest}, the slowest of its phase",
        shown(check),
        f"python -c 'import torch': {shown(alone)}",
        check / alone,
        "1.5 s",
        check <= 1.5,
    )


def _limited(what: str, folder: Path, arguments: list[str], limit: float) -> Figure:
    taken = median_seconds(lambda: _run(folder, "-m", "gradsync", *arguments), TIMES)
    return Figure(what, shown(taken), "", None, f"{limit:g} s", taken <= limit)


def _run(folder: Path, *arguments: str) -> float:
    command = [sys.executable, *arguments]
    return seconds(
        lambda: subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL)
    )
