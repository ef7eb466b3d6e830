"""The commands that a learner runs most: `gradsync --help`, `check`, `doctor`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure, in_turns, median_seconds, seconds, shown
from gradsync.course.catalogue import find_course
from gradsync.course.release.publish import publish

TIMES = 7


def figures() -> Iterator[Figure]:
    """Measure complete commands in a learner's copy of the course, with phase 1 solved."""
    with tempfile.TemporaryDirectory() as folder:
        copy = _solved_copy(Path(folder) / "course")
        yield _limited("gradsync --help", copy, ["--help"], 0.3)
        check, alone = in_turns(
            lambda: _run(copy, "-m", "gradsync", "check", "average_gradients"),
            lambda: _run(copy, "-c", "import torch"),
            times=TIMES,
        )
        yield Figure(
            "gradsync check average_gradients",
            shown(check),
            f"python -c 'import torch': {shown(alone)}",
            check / alone,
            "1.5 s",
            check <= 1.5,
        )
        yield _limited("gradsync doctor", copy, ["doctor"], 3)
        yield _limited("gradsync doctor --launch", copy, ["doctor", "--launch"], 5)


def _solved_copy(folder: Path) -> Path:
    """Write a learner's copy of the course that contains the solution of phase 1."""
    course = find_course()
    phase = course.phases[0]
    publish(course, folder, phase, archive=False)
    for file in course.files(phase):
        shutil.copy(course.root / "solutions" / phase / file, folder / phase / file)
    return folder


def _limited(what: str, folder: Path, arguments: list[str], limit: float) -> Figure:
    taken = median_seconds(lambda: _run(folder, "-m", "gradsync", *arguments), TIMES)
    return Figure(what, shown(taken), "", None, f"{limit:g} s", taken <= limit)


def _run(folder: Path, *arguments: str) -> float:
    command = [sys.executable, *arguments]
    return seconds(
        lambda: subprocess.run(command, cwd=folder, check=False, stdout=subprocess.DEVNULL)
    )
