"""nbgrader's autograde of a phase 1 notebook, compared with the hidden suite alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figure import Figure, in_turns, seconds, shown
from gradsync.course.catalogue import find_course

PROGRAMS = Path(sys.executable).parent
ALLOWED = 3.0  # seconds more than the suite


def figures() -> Iterator[Figure]:
    """Measure both in separate processes, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        root = _class(Path(folder) / "class")
        ours, theirs = in_turns(lambda: _autograde(root), _suite, times=3)
    yield Figure(
        "nbgrader autograde of phase 1, solution",
        f"in nbgrader: {shown(ours)}",
        f"hidden suite alone: {shown(theirs)}",
        ours / theirs,
        f"at most {ALLOWED:g} s more",
        ours <= theirs + ALLOWED,
    )


def _class(root: Path) -> Path:
    """Write a course in which one learner has handed in the solution; return its folder."""
    shutil.copytree(find_course().root / "notebooks" / "nbgrader", root)
    _run(root, "generate_assignment", "phase1")
    submitted = root / "submitted" / "ada" / "phase1"
    submitted.mkdir(parents=True)
    shutil.copy(root / "source" / "phase1" / "phase1.ipynb", submitted)
    return root


def _autograde(root: Path) -> float:
    shutil.rmtree(
        root / ".gradsync", ignore_errors=True
    )  # otherwise earlier reports would be reused
    return seconds(lambda: _run(root, "autograde", "phase1", "--force"))


def _suite() -> float:
    command = [sys.executable, "-m", "benchmarks.suite", "phase1", "sandbox"]
    return seconds(lambda: subprocess.run(command, check=True, cwd=find_course().root))


def _run(root: Path, *arguments: str) -> None:
    command = [str(PROGRAMS / "nbgrader"), *arguments, "--log-level", "ERROR"]
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"  # nbgrader starts alembic by name
    subprocess.run(command, cwd=root, check=True, env={**os.environ, "PATH": path})
