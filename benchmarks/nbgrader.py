"""nbgrader's time for a trivial submission: one notebook with one answer and one test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

CONFIG = """c = get_config()
c.CourseDirectory.course_id = "class"
"""
ANSWER = """def double(number):
    ### BEGIN SOLUTION
    return 2 * number
    ### END SOLUTION
"""
SIZE = 5  # submissions


def seconds_each(room: Path) -> float:
    """Grade a class with `nbgrader autograde` in a new folder; return the seconds per submission.

    Raises:
        SystemExit: nbgrader failed.
    """
    source = room / "source" / "a" / "a.ipynb"
    source.parent.mkdir(parents=True)
    (room / "nbgrader_config.py").write_text(CONFIG)
    cells = [
        _cell(ANSWER, "double", solution=True, grade=False),
        _cell("assert double(2) == 4", "test", solution=False, grade=True, points=1),
    ]
    notebook = notebook_of(cells)
    nbformat.write(notebook, source)
    _run(room, "generate_assignment", "a")
    for number in range(SIZE):
        target = room / "submitted" / f"learner-{number}" / "a" / "a.ipynb"
        target.parent.mkdir(parents=True)
        nbformat.write(notebook, target)
    began = time.monotonic()
    _run(room, "autograde", "a")
    took = time.monotonic() - began
    graded = len(list(room.glob("autograded/*/a/a.ipynb")))
    if graded != SIZE:
        raise SystemExit(f"nbgrader graded {graded} submissions, expected {SIZE}.")
    return took / SIZE


def notebook_of(cells: Sequence[nbformat.NotebookNode]) -> nbformat.NotebookNode:
    """Return a notebook for Python with these cells."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return new_notebook(cells=list(cells), metadata=kernel)


def _cell(
    source: str, name: str, *, solution: bool, grade: bool, **more: object
) -> nbformat.NotebookNode:
    settings = {"grade_id": name, "grade": grade, "solution": solution, "schema_version": 3}
    rest = {"locked": not solution, "task": False, **more}
    return new_code_cell(source, metadata={"nbgrader": {**settings, **rest}})


def _run(room: Path, *command: str) -> None:
    programs = Path(sys.executable).parent  # nbgrader starts alembic by its name
    path = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *command],
        cwd=room,
        env=os.environ | {"PATH": path, "JUPYTER_DATA_DIR": str(room / "jupyter")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"nbgrader failed:\n{done.stderr}")
