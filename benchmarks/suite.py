"""The complete hidden suites on the reference solution; phase 1 with every launcher."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

from benchmarks.figure import Figure, in_turns, seconds, shown
from gradsync.course.catalogue import find_course
from gradsync.course.known_submissions import reference
from gradsync.grading.grade import grade
from gradsync.ranks.host.launchers.choice import LauncherName

FULL_MARKS = 100.0  # points of a phase


def figures() -> Iterator[Figure]:
    """Measure each in a new process, with its imports, like a run of `gradsync grade`."""
    ours, theirs = in_turns(lambda: _fresh("phase1"), lambda: _fresh("phase1", "spawn"), times=1)
    ours = statistics.median([ours, _fresh("phase1"), _fresh("phase1")])
    yield Figure(
        "hidden suite of phase 1, solution",
        f"forked ranks: {shown(ours)}",
        f"spawned ranks: {shown(theirs)}",
        theirs / ours,
        "at most 10 s, 10 times faster",
        ours <= 10 and theirs >= 10 * ours,
    )
    ours, theirs = in_turns(lambda: _fresh("phase1", "sandbox"), lambda: _fresh("phase1"), times=5)
    yield Figure(
        "hidden suite of phase 1, in a sandbox",
        f"sandboxed ranks: {shown(ours)}",
        f"forked ranks: {shown(theirs)}",
        ours / theirs,
        "at most 1.1 times the time",
        ours <= 1.1 * theirs,
    )
    for phase in find_course().phases[1:]:
        ours = statistics.median(_fresh(phase) for _ in range(3))
        yield Figure(
            f"hidden suite of {phase}, solution",
            f"forked ranks: {shown(ours)}",
            "",
            None,
            "at most 12 s",
            ours <= 12,
        )


def _fresh(phase: str, launcher: LauncherName = "fork") -> float:
    command = [sys.executable, "-m", "benchmarks.suite", phase, launcher]
    return seconds(lambda: subprocess.run(command, check=True))


def main(phase: str, launcher: LauncherName) -> None:
    """Grade the reference once, and fail without full marks: the time would be meaningless."""
    course = find_course()
    report = grade(reference(course), course, phases=[phase], seed=1, launcher=launcher)
    if report.score != FULL_MARKS:
        raise SystemExit(
            f"The reference got {report.score} points in {phase}, expected {FULL_MARKS}."
        )


if __name__ == "__main__":
    [launcher] = [name for name in get_args(LauncherName) if name == sys.argv[2]]
    main(sys.argv[1], launcher)
