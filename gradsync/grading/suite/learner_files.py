"""Compile and import a learner's files once, before their tests run.

Every rank of every test imports `template_trainer.py`, and most of an import's time is compiling:
later ranks use the compiled file. If a file can't be imported, all its tests fail in the same way:
it is diagnosed once, and its tests start no ranks. Files are compiled on a rank, because some
sources crash the compiler.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from gradsync.grading.suite.import_probe import load_files
from gradsync.ranks.failures.exceptions import on_import
from gradsync.ranks.host.launchers.launcher import Launcher
from gradsync.ranks.host.observe import observe
from gradsync.ranks.task import Task
from gradsync.records import Failure, Observation

TIME_LIMIT = 10.0  # seconds; torch itself is already imported


@dataclass(frozen=True)
class Loaded:
    """The result of importing the files of a folder."""

    # File -> why it can't be imported.
    failures: Mapping[str, Failure] = field(default_factory=dict)
    stubs: frozenset[str] = frozenset()  # names of functions and classes without a body


class Loader:
    """Loads the files of each folder once, and keeps the results."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Loaded] = {}

    def load(self, task: Task, paths: Sequence[Path], launcher: Launcher) -> Loaded:
        """Compile and import files on a rank, unless they are already loaded.

        Args:
            task: the run of a test, in whose environment the files are imported.
            paths: the files; a file that others import comes before them.
            launcher: starts the rank.

        Raises:
            LauncherError: the rank could not be started.
        """
        key = (task.path, *((path, path.stat().st_mtime_ns) for path in paths))
        if key not in self._known:
            self._known[key] = _load(task, paths, launcher)
        return self._known[key]


def _load(task: Task, paths: Sequence[Path], launcher: Launcher) -> Loaded:
    observation = _observe(task, paths, launcher)
    failure = observation.failure
    if failure is None:
        return Loaded(stubs=_read(observation.values[0], paths))
    if len(paths) == 1:
        [file] = (path.name for path in paths)
        return Loaded({file: on_import(failure, file)})
    each = [_load(task, [path], launcher) for path in paths]
    return Loaded(
        {file: failure for one in each for file, failure in one.failures.items()},
        frozenset[str]().union(*(one.stubs for one in each)),
    )


def _observe(task: Task, paths: Sequence[Path], launcher: Launcher) -> Observation:
    load = Task(
        function=load_files,
        world_size=1,
        inputs={"paths": [str(path) for path in paths]},
        roots=task.roots,
        path=(*task.path[:1], str(paths[0].parent.parent), *task.path[1:]),  # as in tests
        readable=task.readable,
        environ=task.environ,
        timeout=TIME_LIMIT,
    )
    return observe(load, launcher)


def _read(answer: Any, paths: Sequence[Path]) -> frozenset[str]:
    """Store the compiled files that the rank returned; return the stubs.

    The rank is not trusted, so each type is checked.
    """
    stubs: set[str] = set()
    for path, found in zip(paths, answer if isinstance(answer, list) else [], strict=False):
        code, names = found if isinstance(found, tuple) and len(found) == 2 else (None, None)
        if type(code) is bytes:
            _keep(path, code)
        if isinstance(names, list):
            stubs |= {name for name in names if type(name) is str}
    return frozenset(stubs)


def _keep(path: Path, code: bytes) -> None:
    """Write a file's compiled code to Python's cache."""
    cache = Path(cache_from_source(path))
    cache.parent.mkdir(exist_ok=True)
    part = cache.with_suffix(f".{os.getpid()}")
    part.write_bytes(code)
    part.replace(cache)  # in one step, because ranks of another test may be importing it
