"""Find the exercises with tests that can fail for a mistake: they run a function that it changes.

The other tests run exactly the code of the solution, so they are not needed to grade the mistake.
The functions that the tests run are recorded once. For this, the tests run on the solution with one
more line in each function, which writes the function's name into a pipe.
"""

from __future__ import annotations

import ast
import functools
import os
import tempfile
from collections.abc import Collection, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from gradsync.course.catalogue import Course
from gradsync.course.known_submissions import reference
from gradsync.grading.grade import grade
from gradsync.submission import Submission

Functions = frozenset[str]  # "phase1/template_trainer.py train"; a method as "Class.method"


def ran_by_exercise(course: Course, phase: str, seed: int, pool: Executor) -> dict[str, Functions]:
    """Return the functions of the solution that the hidden tests of each exercise run."""
    jobs = {
        exercise.id: pool.submit(_functions_run, course, exercise.id, seed)
        for exercise in course.exercises(phase)
    }
    return {exercise: job.result() for exercise, job in jobs.items()}


def affected_exercises(
    submission: Submission, solution: Submission, ran: Mapping[str, Functions]
) -> list[str]:
    """Return the exercises, in the order of `ran`, whose tests run a changed function."""
    changed: set[str] = set()
    for path, source in solution.files.items():
        if submission.files[path] == source:
            continue
        frame, functions = _parts(path, source)
        try:
            other_frame, other_functions = _parts(path, submission.files[path])
        except SyntaxError:
            return list(ran)
        if other_frame != frame:  # classes, imports, added or removed functions
            return list(ran)
        changed |= {name for name, code in functions.items() if other_functions[name] != code}
    return [exercise for exercise, functions in ran.items() if functions & changed]


def exercises_running(definitions: Collection[str], ran: Mapping[str, Functions]) -> list[str]:
    """Return the exercises whose tests run one of these functions, or a method of these classes."""
    return [
        exercise
        for exercise, functions in ran.items()
        if any(
            name == one or name.startswith(f"{one}.") for one in definitions for name in functions
        )
    ]


class _Functions(ast.NodeTransformer):
    """Visits functions and methods with their names, but not functions inside functions."""

    def __init__(self, path: str) -> None:
        self._scope = f"{path} "

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        before, self._scope = self._scope, f"{self._scope}{node.name}."
        self.generic_visit(node)
        self._scope = before
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return self.changed(node, self._scope + node.name)

    def changed(self, node: ast.FunctionDef, name: str) -> ast.stmt:
        raise NotImplementedError


class _Extracted(_Functions):
    """Extracts the functions of a file, and replaces each by its name."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.functions: dict[str, str] = {}

    def changed(self, node: ast.FunctionDef, name: str) -> ast.stmt:
        # A file may define several functions of the same name.
        self.functions[name] = self.functions.get(name, "") + ast.dump(node)
        return ast.Expr(ast.Name(name))


class _Reporting(_Functions):
    """Makes each function write its name into a pipe; some tests would detect a written file."""

    def __init__(self, path: str, pipe: Path) -> None:
        super().__init__(path)
        self._pipe = str(pipe)

    def changed(self, node: ast.FunctionDef, name: str) -> ast.stmt:
        report = f"with open({self._pipe!r}, 'w') as _pipe: _pipe.write({name + chr(10)!r})"
        documented = ast.get_docstring(node) is not None
        node.body[documented:documented] = ast.parse(report).body
        return node


@functools.lru_cache(maxsize=8)  # the solution is parsed once for all mistakes
def _parts(path: str, source: bytes) -> tuple[str, dict[str, str]]:
    """Return a file's code outside of functions, and its functions by name."""
    extracted = _Extracted(path)
    frame = ast.dump(extracted.visit(ast.parse(source)))
    return frame, extracted.functions


def _functions_run(course: Course, exercise: str, seed: int) -> Functions:
    phase = exercise.partition("/")[0]
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "ran"
        os.mkfifo(pipe)
        files = {
            path: ast.unparse(_Reporting(path, pipe).visit(ast.parse(source))).encode()
            for path, source in reference(course).files.items()
        }
        reporting = Submission("the solution, reporting which functions run", files)
        with ThreadPoolExecutor(1) as reader:
            lines = reader.submit(lambda: frozenset(pipe.read_text().splitlines()))
            with pipe.open("w"):  # otherwise the reader stops after the first name
                report = grade(
                    reporting, course, phases=[phase], seed=seed, exercises=[exercise], parallel=1
                )
        if report.score != report.max_score:
            raise RuntimeError(
                f"The solution does not get full marks in {exercise}, so the functions that its "
                f"tests run are unknown: {report.verdicts}"
            )
        return lines.result()
