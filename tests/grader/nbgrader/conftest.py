"""An nbgrader course that goes through the complete cycle once, for all tests."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from class_folder import ClassFolder
from learners import COURSE, Learner, hostile, known_mistake, read
from processes import descendants_of, eventually, is_alive
from sandboxed import needs_sandbox

__all__ = ["needs_sandbox"]


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> ClassFolder:
    """A course with both assignments released."""
    folder = ClassFolder(tmp_path_factory.mktemp("nbgrader") / "class")
    for phase in COURSE.phases:
        folder.release(phase)
    return folder


@pytest.fixture(scope="session")
def learners(released: ClassFolder) -> dict[str, Learner]:
    """The learners who hand in phase 1, except the one who leaves it untouched."""
    return {
        "ada": Learner(),
        "bob": known_mistake("forgets-to-divide"),
        "cleo": known_mistake("skips-missing-gradients"),  # it deadlocks
        "eve": hostile(released.root),
    }


@pytest.fixture(scope="session")
def handed_in(released: ClassFolder, learners: dict[str, Learner]) -> ClassFolder:
    """The course with the submissions of five learners."""
    source = read(released.root / "source" / "phase1" / "phase1.ipynb")
    for name, learner in learners.items():
        released.submit(name, "phase1", learner.notebook(source))
    released.submit("dan", "phase1", read(released.root / "release" / "phase1" / "phase1.ipynb"))
    return released


@pytest.fixture(scope="session")
def killed_midway(handed_in: ClassFolder, needs_sandbox: None) -> Iterator[list[int]]:
    """Kill `gradsync nbgrade` after its first learner; return the ids of remaining processes."""
    process = handed_in.start("gradsync", "nbgrade", ".", "phase1", "--jobs", 2)
    try:
        store = handed_in.root / ".gradsync" / "phase1"
        assert eventually(lambda: list(store.glob("*/report.json")), seconds=300)
        family = [process.pid, *descendants_of(process.pid)]
    finally:
        process.kill()
        process.wait()
    return [pid for pid in family if not eventually(lambda pid=pid: not is_alive(pid), seconds=20)]


@pytest.fixture(scope="session")
def graded(
    handed_in: ClassFolder, killed_midway: list[int]
) -> tuple[ClassFolder, subprocess.CompletedProcess[str]]:
    """The course after autograding phase 1, and the run that finished it."""
    return handed_in, handed_in.run("gradsync", "nbgrade", ".", "phase1", "--jobs", 2)
