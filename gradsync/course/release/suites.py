"""The tests of a release, with those modules of `support` that they import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from modulefinder import ModuleFinder
from pathlib import Path

from gradsync.course.catalogue import Audience, Course
from gradsync.course.support import AVERAGING, TRACED, TRAINED


def tests_of(
    course: Course, phases: Sequence[str], audiences: Sequence[Audience]
) -> dict[str, bytes]:
    """Return the files of the phases' suites, and the modules that they need, by path.

    Without the hidden suites, modules of `support` that only these import are left out, because
    they may describe hidden tests.

    Raises:
        CourseError: a phase lacks one of these suites.
    """
    tests = course.root / "tests"
    suites = [course.suite(audience, phase) for audience in audiences for phase in phases]
    folders = [*suites, *(course.standins(phase) for phase in phases)]
    needed = {path for folder in folders for path in _files(folder)}
    finder = ModuleFinder([str(tests)])  # finds only the modules in this folder
    for path in needed:
        if path.suffix == ".py":
            finder.run_script(str(path))  # reads its imports
    for command in (TRACED, TRAINED, AVERAGING):
        with suppress(ImportError):  # a course may lack it
            finder.import_hook(command)
    found = (getattr(module, "__file__", None) for module in finder.modules.values())
    needed |= {Path(file) for file in found if file is not None}
    return {path.relative_to(course.root).as_posix(): path.read_bytes() for path in needed}


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            yield path
