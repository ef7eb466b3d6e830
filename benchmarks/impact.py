"""Which tests can tell a mistake from the solution: those that run a function it changes.

The others do what they do with the solution, line for line, so that a full grade need not run them.
What a test runs is found out once: its ranks get the solution with a line more in each function.
"""

from __future__ import annotations

import ast
import functools
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from gradsync.bank import reference
from gradsync.course import Course
from gradsync.grading import grade
from gradsync.submission import Submission

Functions = frozenset[str]  # "phase1/template_trainer.py train", a method with its class's name


def ran_by_test(course: Course, phase: str, seed: int, pool: Executor) -> dict[str, Functions]:
    """Return, for each test of a phase's hidden suite, the solution's functions that it runs."""
    whole = grade(reference(course), course, phases=[phase], seed=seed)
    tests = [verdict.id for verdict in whole.verdicts]
    jobs = {test: pool.submit(_functions_run, course, phase, test, seed) for test in tests}
    return {test: job.result() for test, job in jobs.items()}


def affected_tests(
    submission: Submission, solution: Submission, ran: Mapping[str, Functions]
) -> Sequence[str] | None:
    """Return the tests that run what differs from the solution; None: all are to be run."""
    changed: set[str] = set()
    for path, source in solution.files.items():
        if submission.files[path] == source:
            continue
        frame, bodies = _parts(path, source)
        try:
            other_frame, other_bodies = _parts(path, submission.files[path])
        except SyntaxError:
            return None
        if other_frame != frame:  # signatures, classes, imports, further functions
            return None
        changed |= {name for name, body in bodies.items() if other_bodies[name] != body}
    return [test for test, functions in ran.items() if functions & changed] or None


class _Functions(ast.NodeTransformer):
    """Visits functions and methods, with their names, but not the functions inside those."""

    def __init__(self, path: str) -> None:
        self._scope = f"{path} "

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        before, self._scope = self._scope, f"{self._scope}{node.name}."
        self.generic_visit(node)
        self._scope = before
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.change(node, self._scope + node.name)
        return node

    def change(self, node: ast.FunctionDef, name: str) -> None:
        raise NotImplementedError


class _TakenOut(_Functions):
    """Takes the bodies of functions out of a file."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.bodies: dict[str, str] = {}

    def change(self, node: ast.FunctionDef, name: str) -> None:
        self.bodies[name] = ast.dump(ast.Module(node.body, []))
        node.body = []


class _Telling(_Functions):
    """Has each function add its name to a file when it runs."""

    def __init__(self, path: str, log: Path) -> None:
        super().__init__(path)
        self._log = str(log)

    def change(self, node: ast.FunctionDef, name: str) -> None:
        telling = f"with open({self._log!r}, 'a') as _log: _log.write({name + chr(10)!r})"
        documented = ast.get_docstring(node) is not None
        node.body[documented:documented] = ast.parse(telling).body


@functools.lru_cache(maxsize=8)  # the solution's are asked for with every mistake
def _parts(path: str, source: bytes) -> tuple[str, dict[str, str]]:
    """Return a file's code outside of functions, and the bodies of its functions by name."""
    taken_out = _TakenOut(path)
    frame = ast.dump(taken_out.visit(ast.parse(source)))
    return frame, taken_out.bodies


def _functions_run(course: Course, phase: str, test: str, seed: int) -> Functions:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ran"
        log.touch()
        files = {
            path: ast.unparse(_Telling(path, log).visit(ast.parse(source))).encode()
            for path, source in reference(course).files.items()
        }
        telling = Submission("the solution, telling what runs", files)
        report = grade(telling, course, phases=[phase], seed=seed, tests=[test], workers=1)
        [verdict] = report.verdicts
        if verdict.status != "passed":
            raise RuntimeError(f"{test} can't be asked what it runs: {verdict.message}")
        return frozenset(log.read_text().splitlines())
