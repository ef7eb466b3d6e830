"""`check` and `grade`: run the tests of an exercise on an answer from a notebook."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gradsync.course.catalogue import Audience, Course, CourseError, Exercise, find_course
from gradsync.errors import GraderError, SandboxError
from gradsync.grading import grade as grading
from gradsync.grading.store import draw_seed
from gradsync.notebook.definitions.file import NotebookError
from gradsync.notebook.definitions.locations import relocate
from gradsync.notebook.hand_in import hand_in
from gradsync.notebook.namespace import namespace_of, running_shell
from gradsync.notebook.undisturbed import undisturbed
from gradsync.notebook.waiting import Waiting
from gradsync.ranks import get_launcher
from gradsync.ranks.host.launchers.choice import LauncherName
from gradsync.ranks.sandbox import sandbox
from gradsync.records import Report, Verdict
from gradsync.reports import terminal
from gradsync.reports.notebook import cell
from gradsync.reports.text import finite


class Stopped(KeyboardInterrupt):
    """The user stopped a check."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True, slots=True, repr=False)
class Result:
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
        return f"Result(score={self.score}, max_score={self.max_score})"

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": cell.render(self.report, self.root)}


def check(exercise: str, answer: object, *, seed: int | None = None) -> Result:
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
) -> Result:
    try:
        get_launcher(launcher).warm_up()  # in parallel with the import of torch here
        files = hand_in(course, exercise, namespace_of(answer))
        with undisturbed(course.root / "tests"):
            report = grading.grade(
                files.submission,
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
    return Result(replace(relocate(report, files.modules), command=command), _relative(course))


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


def _show(result: Result, waiting: Waiting) -> None:
    if running_shell() is None:
        print(result)
        return
    from IPython.display import display

    forms = result._repr_mimebundle_()
    if not waiting.replace(forms):
        display(forms, raw=True)
