"""An nbgrader course folder, and the programs that run in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from learners import COURSE, write

PROGRAMS = Path(sys.executable).parent
Points = dict[str, dict[str, float]]  # by learner and grading cell


class ClassFolder:
    """A copy of notebooks/nbgrader, and programs that run in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not root.exists():
            shutil.copytree(COURSE.root / "notebooks" / "nbgrader", root)

    def run(
        self, *command: object, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `nbgrader ...` or `gradsync ...` in the folder."""
        return subprocess.run(
            self._command(command),
            cwd=self.root,
            env=env or environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )

    def start(self, *command: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command(command),
            cwd=self.root,
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def release(self, assignment: str) -> Path:
        done = self.run("nbgrader", "generate_assignment", assignment)
        assert done.returncode == 0, done.stderr
        return self.root / "release" / assignment / f"{assignment}.ipynb"

    def submit(self, name: str, assignment: str, notebook: object) -> None:
        write(notebook, self.root / "submitted" / name / assignment / f"{assignment}.ipynb")

    def points(self, assignment: str) -> Points:
        """Return the points in the gradebook."""
        from nbgrader.api import Gradebook  # takes a second, and each process imports this file

        with Gradebook(f"sqlite:///{self.root / 'gradebook.db'}") as gradebook:
            return {
                submission.student.id: {
                    grade.name.removeprefix("grade-"): grade.auto_score
                    for notebook in submission.notebooks
                    for grade in notebook.grades
                }
                for submission in gradebook.assignment_submissions(assignment)
            }

    @staticmethod
    def _command(command: tuple[object, ...]) -> list[str]:
        return [str(PROGRAMS / str(command[0])), *map(str, command[1:])]


def environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
