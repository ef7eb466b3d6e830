"""An nbgrader course folder: its settings, its gradebook and the submissions."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps import AutogradeApp
from nbgrader.converters import Autograde
from nbgrader.converters.base import NbGraderException
from nbgrader.preprocessors import Execute
from sqlalchemy.exc import SAWarning
from traitlets.utils.importstring import import_item

from gradsync.nbgrader.autograde import GradeSubmission, released
from gradsync.nbgrader.rebuilding import Notebook
from gradsync.submission import SubmissionError

SQLITE = "sqlite:///"
ROUTINE = ("Removing existing assignment",)  # warnings about requested actions


class NbCourse:
    """An assignment of the nbgrader course in the process's working folder."""

    def __init__(self, assignment: str) -> None:
        """Read the settings of the course in the working folder.

        Raises:
            SubmissionError: this is not a course folder, its gradebook does not have the
                assignment, or its settings would run the cells of submissions.
        """
        self.assignment = assignment
        self.root = Path.cwd()
        if not (self.root / "nbgrader_config.py").is_file():
            raise SubmissionError(
                f"{self.root} is not a course folder: it has no nbgrader_config.py."
            )
        self._log = _Log()
        self._app = AutogradeApp()
        self._app.initialize([])
        self._app.log = logging.Logger("nbgrader")
        self._app.log.addHandler(self._log)
        self._directory = self._app.coursedir
        self._directory.assignment_id = assignment
        self._check_settings()
        self._check_assignment()

    @property
    def sandboxed(self) -> bool:
        """Whether the settings require a sandbox."""
        return bool(GradeSubmission(parent=self._app).sandboxed)

    def notebooks(self) -> dict[str, Notebook]:
        """Return the notebooks of the assignment as they were released, by name."""
        with self._gradebook() as gradebook:
            names = [known.name for known in gradebook.find_assignment(self.assignment).notebooks]
            return {name: released(gradebook, name, self.assignment) for name in names}

    def submissions(self) -> dict[str, Path]:
        """Return the submitted folders by learner.

        Raises:
            SubmissionError: there is no submission.
        """
        step = self._directory.submitted_directory
        found = glob.glob(self._directory.format_path(step, "*", self.assignment))  # noqa: PTH207
        pattern = self._directory.format_path(step, "(?P<student>.*)", self.assignment, escape=True)
        folders = {}
        for path in sorted(found):
            match = re.fullmatch(pattern, path)
            if match is not None and Path(path).is_dir():
                folders[match["student"]] = Path(path)
        if not folders:
            raise SubmissionError(
                f"{self.root} has no submissions for {self.assignment}. Put them into "
                f"{self._directory.format_path(step, 'STUDENT', self.assignment)}."
            )
        return folders

    def scored(self) -> dict[str, tuple[float, float]]:
        """Return (points, maximum) of each learner whose tests all have points."""
        tested = {
            (notebook, name)
            for notebook, cells in self.notebooks().items()
            for name, cell in cells.items()
            if cell.is_tested
        }
        with self._gradebook() as gradebook:
            return {
                submission.student.id: (submission.score, submission.max_score)
                for submission in gradebook.assignment_submissions(self.assignment)
                if all(
                    grade.auto_score is not None
                    for notebook in submission.notebooks
                    for grade in notebook.grades
                    if (notebook.name, grade.name) in tested
                )
            }

    def autograded_folder(self, student: str) -> Path:
        """Return the folder into which nbgrader writes a learner's autograded notebooks."""
        step = self._directory.autograded_directory
        return Path(self._directory.format_path(step, student, self.assignment))

    def digest(self, folder: Path) -> str:
        """Return the digest of a submission and of the files that affect its autograding."""
        step = self._directory.source_directory
        source = Path(self._directory.format_path(step, ".", self.assignment))
        digest = hashlib.sha256((self.root / "nbgrader_config.py").read_bytes())
        for path in [*sorted(source.rglob("*")), *sorted(folder.rglob("*"))]:
            if path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path}\0{content}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def autograde(self, student: str) -> tuple[str, list[str]]:
        """Autograde one learner with nbgrader; return the problem ("" for none) and warnings."""
        self._log.lines.clear()
        self._directory.student_id = glob.escape(student)
        with _on_path(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbgrader's, and nbformat's about repairs
            try:
                Autograde(coursedir=self._directory, parent=self._app, force=True).start()
            except NbGraderException as problem:
                return self._log.problem() or str(problem), self._log.warnings()
        return "", self._log.warnings()

    def _gradebook(self) -> Gradebook:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SAWarning)
            return Gradebook(self._directory.db_url, self._directory.course_id)

    def _check_settings(self) -> None:
        listed = Autograde(coursedir=self._directory, parent=self._app).autograde_preprocessors
        steps = [import_item(step) if isinstance(step, str) else step for step in listed]
        if GradeSubmission not in steps or any(issubclass(step, Execute) for step in steps):
            raise SubmissionError(
                f"{self.root / 'nbgrader_config.py'} would run the cells of submissions with your "
                "rights. Copy its `c.Autograde` settings from the course's own nbgrader_config.py."
            )

    def _check_assignment(self) -> None:
        url = self._directory.db_url
        generate = f"Run `nbgrader generate_assignment {self.assignment}` in {self.root} first"
        if url.startswith(SQLITE) and not Path(url.removeprefix(SQLITE)).is_file():
            raise SubmissionError(f"There is no gradebook at {url}. {generate}.")
        with _on_path(), self._gradebook() as gradebook:
            try:
                gradebook.find_assignment(self.assignment)
            except MissingEntry:
                known = ", ".join(sorted(each.name for each in gradebook.assignments))
                raise SubmissionError(
                    f"The gradebook has no assignment {self.assignment!r}; it has "
                    f"{known or 'none'}. {generate}."
                ) from None


class _Log(logging.Handler):
    """Keeps the warnings and errors that nbgrader logs about a learner."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))

    def warnings(self) -> list[str]:
        texts = [text for level, text in self.lines if level == logging.WARNING]
        return [text for text in texts if not text.startswith(ROUTINE)]

    def problem(self) -> str:
        """Return the last line of the first traceback, or the first error if there is none."""
        errors = [text.strip() for level, text in self.lines if level >= logging.ERROR]
        tracebacks = [text for text in errors if text.startswith("Traceback")]
        if tracebacks:
            return tracebacks[0].splitlines()[-1]
        return errors[0] if errors else ""


@contextlib.contextmanager
def _on_path() -> Iterator[None]:
    """Add this Python's folder to PATH: nbgrader starts `alembic` by name."""
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before}"
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        os.environ["PATH"] = before
