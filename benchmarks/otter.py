"""Otter-Grader's time for a trivial submission: one notebook with one answer and one test.

It needs many packages that are not needed otherwise, so it has a separate environment.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell

from benchmarks.nbgrader import notebook_of

PROGRAM = Path(__file__).parent.parent / ".venv-otter" / "bin" / "otter"
INSTALL = "make .venv-otter/ready"
ANSWER = "def double(number):\n    return 2 * number\n"
TEST = """OK_FORMAT = True
case = {"code": ">>> double(2)\\n4", "hidden": False, "locked": False}
suite = {"cases": [case], "scored": True, "setup": "", "teardown": "", "type": "doctest"}
test = {"name": "double", "points": 1, "suites": [suite]}
"""
SIZE = 5  # submissions


def check_is_installed() -> None:
    """Raise SystemExit if Otter-Grader is not installed."""
    if not PROGRAM.is_file():
        raise SystemExit(f"Otter-Grader is not installed. Run `{INSTALL}`.")


def seconds_each(room: Path) -> float:
    """Grade with `otter run` in a new folder; return the seconds per submission.

    `otter run` grades without a container, which is faster than `otter grade`.

    Raises:
        SystemExit: Otter-Grader failed.
    """
    (room / "tests").mkdir(parents=True)
    (room / "tests" / "double.py").write_text(TEST)
    nbformat.write(notebook_of([new_code_cell(ANSWER)]), room / "a.ipynb")
    _run(room, "generate", "--tests-dir", "tests", "--output-path", "autograder.zip")
    began = time.monotonic()
    for number in range(SIZE):
        out = room / f"out-{number}"
        out.mkdir()
        _run(room, "run", "--autograder", "autograder.zip", "--output-dir", out.name, "a.ipynb")
    took = time.monotonic() - began
    for number in range(SIZE):
        tests = json.loads((room / f"out-{number}" / "results.json").read_text())["tests"]
        if sum(test.get("score", 0) for test in tests) != 1:
            raise SystemExit(f"Otter-Grader did not give the point: {tests}")
    return took / SIZE


def _run(room: Path, *command: str) -> None:
    done = subprocess.run(
        [PROGRAM, *command], cwd=room, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"Otter-Grader failed:\n{done.stderr}")
