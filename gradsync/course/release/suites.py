"""The tests of a release, with those modules of `support` that they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from gradsync.course.catalogue import Audience, Course
from gradsync.course.support import AVERAGING, SUPPORT, TRACED, TRAINED


def tests_of(
    course: Course, phases: Sequence[str], audiences: Sequence[Audience]
) -> dict[str, bytes]:
    """Return the files of the phases' suites, and the modules that they need, by path.

    Without the hidden suites, modules of `support` that only these import are left out, because
    they may describe hidden tests.

    Raises:
        CourseError: a phase lacks one of these suites.
    """
    suites = [
        path
        for audience in audiences
        for phase in phases
        for path in _files(course.suite(audience, phase))
    ]
    standins = [path for phase in phases for path in _files(course.standins(phase))]
    commands = filter(None, (_module(course, name) for name in (TRACED, TRAINED, AVERAGING)))
    needed = {*suites, *standins, *commands}
    unread = list(needed)
    while unread:
        for path in _support_of(course, unread.pop()):
            if path not in needed:
                needed.add(path)
                unread.append(path)
    return {path.relative_to(course.root).as_posix(): path.read_bytes() for path in needed}


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            yield path


def _support_of(course: Course, path: Path) -> Iterator[Path]:
    """Yield the modules of `support` that a file imports, and the packages above them."""
    if path.suffix != ".py":
        return
    package = path.relative_to(course.root / "tests").parts[:-1]
    for name in _imports(ast.parse(path.read_bytes(), str(path)), package):
        parts = name.split(".")
        if parts[0] == SUPPORT:
            above = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
            yield from filter(None, (_module(course, each) for each in above))


def _imports(tree: ast.Module, package: Sequence[str]) -> Iterator[str]:
    """Yield the names that a module imports; those of `from x import y` may be attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*base, *([node.module] if node.module else ())])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _module(course: Course, name: str) -> Path | None:
    """Return the file of a module in `tests`, or None if there is none with this name."""
    path = course.root / "tests" / Path(*name.split("."))
    found = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in found if file.is_file()), None)
