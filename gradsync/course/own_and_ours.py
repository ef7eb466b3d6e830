"""The source of an exercise, in a learner's file and in the solution, each with its helpers."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from gradsync.course.catalogue import Course, CourseError, Exercise
from gradsync.course.templates import BEGIN, END, make_template


def own_and_ours(course: Course, exercise: Exercise) -> tuple[str, str]:
    """Return the learner's source of an exercise, and the solution's.

    Raises:
        CourseError: this copy has no solutions, or the learner's file can't be read.
    """
    solution = course.root / "solutions" / exercise.phase / exercise.file
    if not solution.is_file():
        raise CourseError(
            "This copy of the course has no solutions. A copy for self-study has them: "
            "`gradsync release OUT --self-study` in the whole course writes one."
        )
    text = solution.read_text(encoding="utf-8")
    template = ast.parse(make_template(text, exercise.phase))
    given = {name for node in template.body for name in _defined(node)}
    path = course.root / exercise.phase / exercise.file
    try:
        own = path.read_text(encoding="utf-8")
        mine = _with_helpers(own, exercise.name, given)
    except (OSError, ValueError, SyntaxError) as problem:
        raise CourseError(f"{path} can't be read: {problem}.") from None
    ours = _with_helpers(text, exercise.name, given)
    unmarked = [line for line in ours.splitlines() if line.strip() not in (BEGIN, END)]
    return mine or f"# There is no {exercise.name} in {path}.", "\n".join(unmarked)


def _defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module defines, other than imports."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (t.id for target in targets for t in ast.walk(target) if isinstance(t, ast.Name))


def _with_helpers(source: str, exercise: str, given: Collection[str]) -> str:
    """Return an exercise's source and that of what it uses and the template does not give."""
    body = ast.parse(source).body
    homes = {name: node for node in body for name in _defined(node)}  # the last definition counts
    wanted, shown = [exercise], set()
    while wanted:
        node = homes.get(wanted.pop())
        if node is None or node in shown:
            continue
        shown.add(node)
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        wanted += [name for name in used if name in homes and name not in given]
    lines = source.splitlines()
    return "\n\n\n".join(_text(node, lines) for node in body if node in shown)


def _text(node: ast.stmt, lines: list[str]) -> str:
    """Return the lines of a statement, with its decorators and the comments just above it."""
    decorators = getattr(node, "decorator_list", [])
    start = min([node.lineno, *(each.lineno for each in decorators)]) - 1
    while start and lines[start - 1].startswith("#") and lines[start - 1] not in (BEGIN, END):
        start -= 1
    return "\n".join(lines[start : node.end_lineno])
