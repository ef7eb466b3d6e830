"""Generate templates from solutions by removing the marked parts, which a learner writes.

The markers are nbgrader's, so that files and notebooks have the same source.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Collection, Iterator

from gradsync.course.catalogue import Course, CourseError
from gradsync.records import FIRST_PHASE

BEGIN = "### BEGIN SOLUTION"
END = "### END SOLUTION"


def make_template(solution: str, phase: str, kept: Collection[str] = ()) -> str:
    """Return the template of a solution's source text.

    A marked part inside a function becomes a TODO with its size, and a `raise NotImplementedError`
    with the exercise's id. A marked part between functions is a helper and is removed.

    Args:
        solution: the source text.
        phase: the phase's name.
        kept: exercises that are not removed; then the helpers stay, too.

    Raises:
        CourseError: a marker has no counterpart.
    """
    _check_markers(solution)
    owners = _owners(solution)
    lines: list[str] = []
    removed: list[str] | None = None
    for number, line in enumerate(solution.splitlines(), 1):
        marker = line.strip()
        if marker == BEGIN:
            removed = []
        elif marker == END and removed is not None:
            indent = len(line) - len(line.lstrip())
            owner, margin = owners.get(number, ("", indent))
            is_helper = indent <= margin  # otherwise it is inside a function
            if owner in kept if not is_helper else kept:
                lines += removed
            elif not is_helper:
                lines += _stub(owner, phase, " " * indent, removed)
            removed = None
        elif removed is None:
            lines.append(line)
        else:
            removed.append(line)
    return _tidied(lines)


def templates(course: Course) -> Iterator[tuple[str, str]]:
    """Yield (path within the course, text) of every template.

    Raises:
        CourseError: a solution is missing, or has a marker without a counterpart.
    """
    for phase in course.phases:
        for file in course.files(phase):
            source = course.root / "solutions" / phase / file
            try:
                solution = source.read_text(encoding="utf-8")
            except OSError:
                raise CourseError(
                    f"This copy of the course has no solution from which to make {phase}/{file}: "
                    f"{source} is missing."
                ) from None
            try:
                yield f"{phase}/{file}", make_template(solution, phase)
            except CourseError as problem:
                raise CourseError(f"{source}: {problem}") from None


def _check_markers(source: str) -> None:
    markers = [
        (number, marker)
        for number, line in enumerate(source.splitlines(), 1)
        if (marker := line.strip()) in (BEGIN, END)
    ]
    for (number, marker), wanted in zip(markers, itertools.cycle([BEGIN, END]), strict=False):
        if marker != wanted:
            raise CourseError(f"Line {number} has {marker!r} where {wanted!r} was expected.")
    if len(markers) % 2:
        raise CourseError(f"Line {markers[-1][0]} has {BEGIN!r}, which is never closed.")


def _owners(source: str) -> dict[int, tuple[str, int]]:
    """Return, for each line of a function, the exercise and the column of the function's `def`.

    The exercise is the name of the class or the function.
    """
    owners: dict[int, tuple[str, int]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            functions = node.body if isinstance(node, ast.ClassDef) else [node]
            for function in functions:
                if isinstance(function, ast.FunctionDef):
                    # The closing marker is a comment after the last statement.
                    end = (function.end_lineno or function.lineno) + 2
                    owner = node.name, function.col_offset
                    owners |= dict.fromkeys(range(function.lineno, end), owner)
    return owners


def _stub(owner: str, phase: str, indent: str, removed: list[str]) -> list[str]:
    size = sum(1 for line in removed if line.strip())
    about = f"about {size} line{'s' * (size != 1)}"
    asked = owner if phase == FIRST_PHASE else f"{phase}/{owner}"
    return [
        f"{indent}# TODO: {about}; `gradsync hint {asked}` if you are stuck",
        f'{indent}raise NotImplementedError("{phase}/{owner}")',
    ]


def _tidied(lines: list[str]) -> str:
    """Keep at most two empty lines in a row where helpers were removed."""
    kept: list[str] = []
    for line in lines:
        if line.strip() or len(kept) < 2 or kept[-1].strip() or kept[-2].strip():
            kept.append(line)
    return "\n".join(kept).rstrip() + "\n"
