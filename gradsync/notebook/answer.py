"""`check` and `grade`: run the tests of an exercise on an answer from a notebook."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from gradsync.course.catalogue import Audience, Course, CourseError, Exercise, find_course
from gradsync.errors import GraderError, SandboxError
from gradsync.grading import grade as grading
from gradsync.grading.store import draw_seed
from gradsync.notebook.definitions.file import Cell, Module, NotebookError, module_of
from gradsync.notebook.definitions.locations import relocate
from gradsync.notebook.namespace import Namespace, namespace_of, running_shell
from gradsync.notebook.waiting import Waiting
from gradsync.ranks import get_launcher
from gradsync.ranks.host.launchers.choice import LauncherName
from gradsync.ranks.sandbox import sandbox
from gradsync.records import Report, Verdict
from gradsync.reports import terminal
from gradsync.reports.notebook import cell
from gradsync.reports.text import finite
from gradsync.submission import Submission

NAME = "your notebook"  # of the submission


class Stopped(KeyboardInterrupt):
    """The user stopped a check."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True, slots=True, repr=False)
class Checked:
    """A suite's verdicts on an exercise. A notebook shows them as HTML."""

    report: Report
    root: str | None = None  # relative path from the notebook's folder to the course

    @property
    def score(self) -> float:
        return finite(self.report.score)

    @property
    def max_score(self) -> float:
        return finite(self.report.max_score)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return self.report.verdicts

    def __str__(self) -> str:
        return terminal.render(self.report)

    def __repr__(self) -> str:
        return f"Checked(score={self.score}, max_score={self.max_score})"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": cell.render(self.report, self.root)}


def check(exercise: str, answer: object, *, seed: int | None = None) -> Checked:
    """Run the visible tests of an exercise on a function or class of this notebook.

    Args:
        exercise: its name, or its id such as "phase2/NAME".
        answer: the function or class; it may have any name.
        seed: the seed of the tests' random inputs; the result shows the seed.

    Raises:
        CourseError: the exercise does not exist, or no course was found.
        NotebookError: no cell that has run defines the answer.
        GraderError: the grader itself failed.
    """
    with _errors_in_one_line():
        course = find_course()
        chosen = course.find(_name(exercise))
        with Waiting(f"Checking {chosen.name}: its visible tests run on several ranks ..."):
            return _run(course, chosen, answer, "visible", None, "check", seed)


def grade(exercise: str, answer: object, *, seed: int | None = None) -> float:
    """Return the points of an exercise, from its hidden tests if installed, else the visible ones.

    Also shows the verdicts. Arguments and errors are the same as for `check`. The ranks run in a
    sandbox if this machine has one.
    """
    with _errors_in_one_line():
        course = find_course()
        chosen = course.find(_name(exercise))
        hidden = chosen.phase in course.graded_phases("hidden")
        audience: Audience = "hidden" if hidden else "visible"
        with Waiting(
            f"Grading {chosen.name}: its {audience} tests run on several ranks ..."
        ) as waiting:
            result = _run(course, chosen, answer, audience, _launcher(course), "grade", seed)
            _show(result, waiting)
        return result.score


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """Make a notebook show an error in one line, without frames of this package."""
    try:
        yield
    except (CourseError, NotebookError, GraderError) as problem:
        lines = [f"{type(problem).__name__}: {problem}"]
        setattr(problem, "_render_traceback_", lambda: lines)  # noqa: B010 - IPython calls it
        raise


def _name(exercise: object) -> str:
    if isinstance(exercise, str):
        return exercise
    raise NotebookError(
        'the first argument is an exercise\'s name, the second is your answer: ("NAME", NAME)'
    )


def _run(
    course: Course,
    exercise: Exercise,
    answer: object,
    audience: Audience,
    launcher: LauncherName | None,
    action: str,
    seed: int | None,
) -> Checked:
    try:
        get_launcher(launcher).warm_up()  # in parallel with the import of torch here
        modules = _modules(course, exercise, namespace_of(answer))
        files = {name: module.text.encode() for name, module in modules.items()}
        with undisturbed(course.root / "tests"):
            report = grading.grade(
                Submission(NAME, files),
                course,
                phases=[exercise.phase],
                seed=draw_seed() if seed is None else seed,
                audience=audience,
                exercises=[exercise.id],
                launcher=launcher,
            )
    except KeyboardInterrupt:
        raise Stopped(f"The {action} of {exercise.name} was stopped.") from None
    command = f'gradsync.notebook.{action}("{exercise.id}", {exercise.name}, '
    return Checked(replace(relocate(report, modules), command=command), _relative(course))


def _modules(course: Course, exercise: Exercise, answer: Namespace) -> dict[str, Module]:
    """Return the learner's files of the exercise's phase, with the notebook's definitions added.

    They are by path, such as "phase1/template_trainer.py", and have the origins of their lines.

    Raises:
        NotebookError: the notebook contains too much text.
    """
    cells = answer.cells
    if exercise.name not in answer.names:
        cells = (*cells, Cell("", f"{exercise.name} = {answer.names[0]}"))
    files = course.files(exercise.phase)
    return {
        f"{exercise.phase}/{file}": _module(course, exercise.phase, file, cells) for file in files
    }


def _module(course: Course, phase: str, file: str, cells: Sequence[Cell]) -> Module:
    wanted = [exercise.name for exercise in course.exercises(phase) if exercise.file == file]
    path = course.root / phase / file
    base = None
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
        base = Module.of_text(f"{phase}/{file}", text)
    return module_of(cells, wanted, base=base, without=[PurePosixPath(file).stem])


@contextmanager
def undisturbed(tests: Path) -> Iterator[None]:
    """Undo a grader's changes to this process when the block ends: a kernel continues to run.

    Modules of suites, in the folder `tests`, are removed. The number of torch's threads and the
    random states are restored. Other imported modules stay.
    """
    import torch

    threads = torch.get_num_threads()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    before = set(sys.modules)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for name in set(sys.modules) - before:
            path = getattr(sys.modules[name], "__file__", None)
            if path is not None and Path(path).is_relative_to(tests):
                del sys.modules[name]


def _relative(course: Course) -> str | None:
    """Return the path to the course from this folder, in which Jupyter has started the kernel."""
    try:
        return Path(os.path.relpath(course.root)).as_posix()
    except (OSError, ValueError):  # the folder was deleted, or is on another drive
        return None


def _launcher(course: Course) -> LauncherName | None:
    try:
        sandbox.check(course.root)
    except SandboxError:
        return None
    return "sandbox"


def _show(result: Checked, waiting: Waiting) -> None:
    if running_shell() is None:
        print(result)
        return
    from IPython.display import display

    forms = result._repr_mimebundle_()
    if not waiting.replace(forms):
        display(forms, raw=True)
