"""Compile and import a learner's files once, before the first test uses them.

Compiling `template_trainer.py` takes longer than the rest of its import, and every rank of every
test imports it, so later ranks use the compiled file. A file that can't be imported fails all tests
in the same way, so it is diagnosed once, and its tests start no ranks. All this runs on a rank,
since some sources crash the compiler.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from gradsync.probes.imports import load_files
from gradsync.ranks.crew import Launcher
from gradsync.ranks.exceptions import on_import
from gradsync.ranks.observe import observe
from gradsync.ranks.task import Task
from gradsync.records import Failure, Observation

PATIENCE = 10.0  # seconds; torch itself is already imported


@dataclass(frozen=True)
class Loaded:
    """The result of loading the files of a folder."""

    failures: Mapping[str, Failure] = field(
        default_factory=dict
    )  # file -> why it can't be imported
    stubs: frozenset[str] = frozenset()  # names of functions and classes without a body


class Loader:
    """Loads the files of each folder once, and stores the results."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Loaded] = {}

    def load(self, task: Task, paths: Sequence[Path], launcher: Launcher) -> Loaded:
        """Compile and import files on a rank, unless this has been done.

        Args:
            task: the task of a test, which has the environment for the import.
            paths: the files; a file comes before those that import it.
            launcher: the launcher that starts the rank.

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
        timeout=PATIENCE,
    )
    return observe(load, launcher)


def _read(answer: Any, paths: Sequence[Path]) -> frozenset[str]:
    """Store the compiled files from the rank's untrusted answer; return the stubs."""
    stubs: set[str] = set()
    for path, found in zip(paths, answer if isinstance(answer, list) else [], strict=False):
        code, names = found if isinstance(found, tuple) and len(found) == 2 else (None, None)
        if type(code) is bytes:
            _keep(path, code)
        if isinstance(names, list):
            stubs |= {name for name in names if type(name) is str}
    return frozenset(stubs)


def _keep(path: Path, code: bytes) -> None:
    """Write a file's compiled code to the place where Python looks for it."""
    cache = Path(cache_from_source(path))
    cache.parent.mkdir(exist_ok=True)
    part = cache.with_suffix(f".{os.getpid()}")
    part.write_bytes(code)
    part.replace(cache)  # ranks of another test may be importing it
