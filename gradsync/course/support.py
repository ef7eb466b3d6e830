"""The package `support` of a course: code for its own suites only, such as rules and probes.

It is in the course's folder of tests, so it is not installed. Two courses may each have one.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from gradsync.course.catalogue import CourseError

SUPPORT = "support"  # in `tests`
# `gradsync trace` runs what its functions return: `training_of` and `pipeline_of` of a phase.
TRACED = f"{SUPPORT}.probes.tracing"
TRAINED = f"{SUPPORT}.training"  # `gradsync train` runs it on each rank: `run`
# `gradsync scale --mine` runs it: `REFERENCE`, and `AVERAGERS` by phase, each (name, function).
AVERAGING = f"{SUPPORT}.probes.averaging"


@contextlib.contextmanager
def support_of(root: Path) -> Iterator[None]:
    """Make `import support` find the package in the course's `tests`, while the block runs.

    It stays imported for the next grade, unless another course's package was imported before:
    then that package is restored.
    """
    folder = root / "tests"
    loaded = getattr(sys.modules.get(SUPPORT), "__file__", None)
    if loaded == str(folder / SUPPORT / "__init__.py"):
        yield
        return
    others = _taken_out(SUPPORT)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        if others:
            _taken_out(SUPPORT)
            sys.modules.update(others)


def command_module(root: Path, name: str, purpose: str) -> ModuleType:
    """Import the module of a course that a command runs, inside of `support_of`.

    Raises:
        CourseError: the course has no such module.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise CourseError(f"{root} has no {name}, which defines {purpose}.") from None


def _taken_out(package: str) -> dict[str, ModuleType]:
    """Remove a package and its modules from `sys.modules`, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == package]
    return {name: sys.modules.pop(name) for name in names}
