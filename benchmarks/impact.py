"""Which exercises' tests can tell a mistake from the solution: those that run what it changes.

The others do what they do with the solution, line for line, so that a grade of the mistake need not
run them. What tests run is found out once: they get the solution with a line more in each function.
"""

from __future__ import annotations

import ast
import functools
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

from gradsync.bank import reference
from gradsync.course import Course
from gradsync.grading import grade
from gradsync.submission import Submission

Functions = frozenset[str]  # "phase1/template_trainer.py train", a method with its class's name


def ran_by_exercise(course: Course, phase: str, seed: int, pool: Executor) -> dict[str, Functions]:
    """Return, for each exercise of a phase, the solution's functions that its hidden tests run."""
    jobs = {
        exercise.id: pool.submit(_functions_run, course, exercise.id, seed)
        for exercise in course.exercises(phase)
    }
    return {exercise: job.result() for exercise, job in jobs.items()}


def affected_exercises(
    submission: Submission, solution: Submission, ran: Mapping[str, Functions]
) -> list[str]:
    """Return the exercises, in the order of `ran`, whose tests run what differs."""
    changed: set[str] = set()
    for path, source in solution.files.items():
        if submission.files[path] == source:
            continue
        frame, functions = _parts(path, source)
        try:
            other_frame, other_functions = _parts(path, submission.files[path])
        except SyntaxError:
            return list(ran)
        if other_frame != frame:  # classes, imports, other functions than the solution's
            return list(ran)
        changed |= {name for name, code in functions.items() if other_functions[name] != code}
    return [exercise for exercise, functions in ran.items() if functions & changed]


class _Functions(ast.NodeTransformer):
    """Visits functions and methods, with their names, but not the functions inside those."""

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


class _TakenOut(_Functions):
    """Takes functions out of a file, and leaves their names."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.functions: dict[str, str] = {}

    def changed(self, node: ast.FunctionDef, name: str) -> ast.stmt:
        self.functions[name] = self.functions.get(name, "") + ast.dump(node)  # of one name: all
        return ast.Expr(ast.Name(name))


class _Telling(_Functions):
    """Has each function write its name into a pipe when it runs: a file would count as written."""

    def __init__(self, path: str, pipe: Path) -> None:
        super().__init__(path)
        self._pipe = str(pipe)

    def changed(self, node: ast.FunctionDef, name: str) -> ast.stmt:
        telling = f"with open({self._pipe!r}, 'w') as _pipe: _pipe.write({name + chr(10)!r})"
        documented = ast.get_docstring(node) is not None
        node.body[documented:documented] = ast.parse(telling).body
        return node


@functools.lru_cache(maxsize=8)  # the solution's are asked for with every mistake
def _parts(path: str, source: bytes) -> tuple[str, dict[str, str]]:
    """Return a file's code outside of functions, and its functions by name."""
    taken_out = _TakenOut(path)
    frame = ast.dump(taken_out.visit(ast.parse(source)))
    return frame, taken_out.functions


def _functions_run(course: Course, exercise: str, seed: int) -> Functions:
    phase = exercise.partition("/")[0]
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "ran"
        os.mkfifo(pipe)
        files = {
            path: ast.unparse(_Telling(path, pipe).visit(ast.parse(source))).encode()
            for path, source in reference(course).files.items()
        }
        telling = Submission("the solution, telling what runs", files)
        with ThreadPoolExecutor(1) as reader:
            lines = reader.submit(lambda: frozenset(pipe.read_text().splitlines()))
            with pipe.open("w"):  # or the reader would take the first that is done for the last
                report = grade(
                    telling, course, phases=[phase], seed=seed, exercise=exercise, workers=1
                )
        if report.score != report.max_score:
            raise RuntimeError(f"{exercise} can't be asked what it runs: {report.verdicts}")
        return lines.result()
