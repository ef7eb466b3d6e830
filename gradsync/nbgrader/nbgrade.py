"""Autograde an nbgrader class, several learners at a time, into one gradebook.

Tests take most of the time. They run in separate processes, which store the reports. Only this
process then runs nbgrader's autograde, which is quick when the reports exist. So the gradebook has
only one writer and is never locked.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradsync.course.catalogue import find_course
from gradsync.errors import GraderError, SandboxError
from gradsync.grading.processes.jobs import parallel_tests
from gradsync.grading.processes.pool import in_pool
from gradsync.grading.store import GradeStore
from gradsync.nbgrader.autograde import NO_SANDBOX, phases_of
from gradsync.nbgrader.course_folder import NbCourse
from gradsync.nbgrader.marking import Marking, MarkingTask, Submitted, mark, store_of
from gradsync.nbgrader.rebuilding import Notebook
from gradsync.ranks.sandbox import sandbox
from gradsync.submission import SubmissionError
from gradsync.submission.contents import listing
from gradsync.text import listed, verb

DONE = ".autograded.json"  # in the store: which submissions nbgrader has autograded
KILLED = "the process that graded it was killed. If memory ran out, use a smaller --jobs."


@dataclass(frozen=True, slots=True)
class AutogradeOutcome:
    """The result of autograding a learner's submission."""

    student: str
    status: Literal["graded", "unchanged", "failed"]
    total: int  # submissions of the class
    points: float = 0.0
    max_points: float = 0.0
    problem: str = ""  # why it failed
    warnings: tuple[str, ...] = ()  # from nbgrader


def nbgrade(
    folder: Path,
    assignment: str,
    *,
    jobs: int,
    seed: int | None = None,
    fresh: bool = False,
    students: Sequence[str] = (),
) -> Iterator[AutogradeOutcome]:
    """Autograde an assignment of an nbgrader course; yield the outcome for each learner.

    Args:
        folder: the course folder, which contains nbgrader_config.py.
        assignment: its name, such as "phase1".
        jobs: how many learners are graded at a time.
        seed: the seed of the tests' random inputs; None uses the assignment's kept seed.
        fresh: grade unchanged submissions too.
        students: grade these learners only; by default all.

    Raises:
        SubmissionError: the course or assignment does not exist, or has no such submissions.
        FolderInUse: another run is active.
        GraderError: the course requires a sandbox, but this machine has none.
    """
    if not folder.is_dir():
        raise SubmissionError(
            f"{folder} is not a folder. Name the folder that contains nbgrader_config.py."
        )
    with _inside(folder):
        nbcourse = NbCourse(assignment)
        submissions = nbcourse.submissions()
        if unknown := sorted(set(students) - set(submissions)):
            raise SubmissionError(
                f"There is no submission of {listed(unknown)} for {assignment}. Use the name of a "
                "folder of submissions."
            )
        if students:
            submissions = {student: submissions[student] for student in students}
        course = find_course(nbcourse.root)
        if nbcourse.sandboxed:
            try:
                sandbox.check(course.root)
            except SandboxError as problem:
                raise GraderError(
                    f"There is no sandbox for submissions. {problem} With `{NO_SANDBOX}` in "
                    "nbgrader_config.py, submissions would run with your rights."
                ) from None
        store = store_of(nbcourse.root, assignment)
        with store.locked():
            store.remove_leftovers()
            marking = Marking(
                course=course,
                folder=store.folder,
                seed=store.settle_seed(seed),
                sandboxed=nbcourse.sandboxed,
                command=f"gradsync nbgrade . {assignment}",
                parallel=parallel_tests(jobs),
                fresh=fresh,
            )
            yield from _Class(nbcourse, marking, store).outcomes(submissions, jobs)


class _Class:
    """The submissions of an assignment."""

    def __init__(self, nbcourse: NbCourse, marking: Marking, store: GradeStore) -> None:
        self._nbcourse = nbcourse
        self._marking = marking
        self._store = store
        self._done: dict[str, str] = {}  # by learner, the digest of what nbgrader has autograded
        with suppress(ValueError):  # the file is damaged
            self._done = dict(json.loads(store.read_text(DONE) or "{}"))
        self._notebooks = nbcourse.notebooks()
        self._phases = {name: _phases(self._notebooks[name]) for name in self._notebooks}
        phases = sorted({phase for phases in self._phases.values() for phase in phases})
        self._total = 0
        self._graded_by = [marking.course_digest(phase) for phase in phases]

    def outcomes(self, submissions: Mapping[str, Path], jobs: int) -> Iterator[AutogradeOutcome]:
        digests = {student: self._digest(folder) for student, folder in submissions.items()}
        self._total = len(submissions)
        scored = self._nbcourse.scored()
        tasks = []
        for student, folder in submissions.items():
            if missing := self._not_found(folder):
                yield AutogradeOutcome(student, "failed", self._total, problem=missing)
            elif student in scored and self._is_done(student, folder, digests[student]):
                yield AutogradeOutcome(student, "unchanged", self._total, *scored[student])
            else:
                tasks.append(MarkingTask(student, self._marking, self._submitted(folder)))
        for task, problem in in_pool(mark, tasks, jobs):
            yield self._outcome(task.student, KILLED if problem is None else problem, digests)

    def _outcome(self, student: str, problem: str, digests: Mapping[str, str]) -> AutogradeOutcome:
        if problem:
            return AutogradeOutcome(student, "failed", self._total, problem=problem)
        self._set_done(student, "")  # until nbgrader has written everything
        problem, warnings = self._nbcourse.autograde(student)
        if problem:
            return AutogradeOutcome(
                student, "failed", self._total, problem=problem, warnings=tuple(warnings)
            )
        self._set_done(student, digests[student])
        points, most = self._nbcourse.scored().get(student, (0.0, 0.0))
        return AutogradeOutcome(
            student, "graded", self._total, points, most, warnings=tuple(warnings)
        )

    def _digest(self, folder: Path) -> str:
        marking = self._marking
        made_from = [
            self._nbcourse.digest(folder),
            self._graded_by,
            marking.seed,
            marking.sandboxed,
        ]
        return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()

    def _is_done(self, student: str, folder: Path, digest: str) -> bool:
        written = self._nbcourse.autograded_folder(student)
        names = [notebook.path.name for notebook in self._submitted(folder)]
        is_written = all((written / name).is_file() for name in names)
        return not self._marking.fresh and is_written and self._done.get(student) == digest

    def _set_done(self, student: str, digest: str) -> None:
        self._done[student] = digest
        self._store.write(DONE, json.dumps(self._done))

    def _not_found(self, folder: Path) -> str:
        """Return why a folder's notebooks can't be the assignment's, "" if they can.

        nbgrader gives a missing notebook 0 points, so a notebook with another name would get none.
        """
        absent = [f"{name}.ipynb" for name in self._notebooks]
        absent = [name for name in absent if not (folder / name).is_file()]
        others = {path.name for path in folder.glob("*.ipynb")} - {
            f"{name}.ipynb" for name in self._notebooks
        }
        if not absent or (len(absent) < len(self._notebooks) and not others):
            return ""
        has = f"it has {listing(others)}" if others else "it has no notebook"
        return (
            f"{listing(absent)} {verb(absent, 'is', 'are')} not in {folder.name}: {has}. Rename or "
            "add the notebook, and run the same command again"
        )

    def _submitted(self, folder: Path) -> tuple[Submitted, ...]:
        """Return the submitted notebooks; nbgrader gives missing ones no points."""
        found = [
            Submitted(folder / f"{name}.ipynb", released, self._phases[name])
            for name, released in self._notebooks.items()
        ]
        return tuple(notebook for notebook in found if notebook.path.is_file())


def _phases(notebook: Notebook) -> tuple[str, ...]:
    return tuple(phases_of(cell.source for cell in notebook.values() if cell.is_tested))


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Change into a folder while the block runs: nbgrader looks for its settings there."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
