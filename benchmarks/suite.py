"""The whole hidden suite of phase 1 on the reference solution, over either launcher."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from benchmarks.figure import Figure, in_turns, seconds, shown
from gradsync.bank import reference
from gradsync.course import find_course
from gradsync.grading import grade
from gradsync.ranks.run import LauncherName

FULL_MARKS = 100.0


def figures() -> Iterator[Figure]:
    """Measure each in a process of its own, imports included, as `gradsync grade` has them."""
    ours, theirs = in_turns(lambda: _fresh("fork"), lambda: _fresh("spawn"), times=1)
    ours = sorted([ours, _fresh("fork"), _fresh("fork")])[1]
    yield Figure(
        "hidden suite of phase 1, solution",
        f"forked ranks: {shown(ours)}",
        f"spawned ranks: {shown(theirs)}",
        theirs / ours,
        "at most 12 s, 10 times faster",
        ours <= 12 and theirs >= 10 * ours,
    )


def _fresh(launcher: LauncherName) -> float:
    command = [sys.executable, "-m", "benchmarks.suite", launcher]
    return seconds(lambda: subprocess.run(command, check=True))


def main(launcher: LauncherName) -> None:
    """Grade the reference once; anything but full marks would make the time meaningless."""
    course = find_course()
    report = grade(reference(course), course, phases=["phase1"], seed=1, launcher=launcher)
    if report.score != FULL_MARKS:
        raise SystemExit(f"the reference has {report.score} points, not {FULL_MARKS}")


if __name__ == "__main__":
    main("spawn" if sys.argv[1] == "spawn" else "fork")
