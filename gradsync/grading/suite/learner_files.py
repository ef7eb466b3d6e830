"""The learner's files on the ranks of a suite, and their first import.

Every rank of every test imports `template_trainer.py`, and most of an import's time is compiling:
later ranks use the compiled file. If a file can't be imported, all its tests fail in the same way:
it is diagnosed once, and its tests start no ranks. Files that import it get a substitute, as they
do for a missing file. Files are compiled on a rank, because some sources crash the compiler.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from gradsync.course.catalogue import Course
from gradsync.grading.suite.import_probe import load_files
from gradsync.grading.suite.verdicts import MissingFile
from gradsync.ranks.failures.exceptions import on_import
from gradsync.ranks.host.launchers.launcher import Launcher, rank_environ
from gradsync.ranks.host.supervise import observe
from gradsync.ranks.task import Task
from gradsync.records import Failure, Observation
from gradsync.text import full_stop

TIME_LIMIT = 10.0  # seconds; torch itself is already imported
PROCESSOR_SECONDS = 5.0  # however busy the machine is: several times what large libraries need
GRADED = {
    "CUDA_VISIBLE_DEVICES": "",  # hides GPUs: the same grade on every machine
    # No DNS query (resolv.conf(5)): TCPStore looks up the name of every address that connects,
    # and blocks for 5 s where a name server does not answer.
    "RES_OPTIONS": "attempts:0",
}


@dataclass(frozen=True)
class Loaded:
    """The result of importing the files of a phase."""

    # File -> why it can't be imported.
    failures: Mapping[str, Failure] = field(default_factory=dict)
    stubs: frozenset[str] = frozenset()  # names of functions and classes without a body


@dataclass(frozen=True)
class LearnerFiles:
    """The files of a phase under test, which functions on the ranks can use."""

    submission: Path  # contains a folder for each phase
    course: Course
    phase: str
    refused: Mapping[str, str] = field(default_factory=dict)  # files that do not count, and why

    def settings(self, probe: Callable[..., Any]) -> dict[str, Any]:
        """Return the fields of a `Task` that give `probe` these files.

        Raises:
            MissingFile: a file that the function needs is missing or refused.
        """
        given = self._given()
        return {
            "modules": self._modules(probe),
            "roots": (self.submission,),
            "path": (str(self._folder), *map(str, given)),  # for imports in learners' files
            "readable": given,
            "environ": {**rank_environ(bare=True), **GRADED},
        }

    def load(self, task: Task, launcher: Launcher) -> Loaded:
        """Compile and import the files on a rank, once for all tests.

        Args:
            task: the run of a test, in whose environment the files are imported.
            launcher: starts the rank.

        Raises:
            LauncherError: the rank could not be started.
        """
        files = [self._folder / file for file in self.course.files(self.phase)]
        paths = [path for path in files if path.is_file()]
        key = (task.path, *((path, path.stat().st_mtime_ns) for path in paths))
        if key not in _LOADED:
            _LOADED[key] = _load(self, task, paths, launcher, {}) if paths else Loaded()
        return _LOADED[key]

    def with_substitutes(self, task: Task, failures: Collection[str]) -> Task:
        """Return a run with substitutes for missing files, and for those that can't be imported.

        The course may have a stand-in for a file. Names that it lacks can be imported, but not
        called.
        """
        folder = self.course.standins(self.phase)
        substitutes: dict[str, str] = {}
        for file in self.course.files(self.phase):
            if file in failures or not (self._folder / file).is_file():
                name, standin = file.removesuffix(".py"), folder / file
                place = str(standin) if standin.is_file() else ""
                substitutes |= {name: place, f"{self.phase}.{name}": place}
        readable = (*task.readable, folder) if any(substitutes.values()) else task.readable
        return replace(task, substitutes=substitutes, readable=readable)

    @property
    def _folder(self) -> Path:
        return self.submission / self.phase

    def _modules(self, probe: Callable[..., Any]) -> dict[str, Path]:
        """Return the files that are parameters of `probe`, by the parameter's name."""
        wanted = probe.__code__.co_varnames[: probe.__code__.co_argcount]
        named = {
            file.removeprefix("template_").removesuffix(".py"): file
            for file in self.course.files(self.phase)
        }
        modules = {name: self._folder / file for name, file in named.items() if name in wanted}
        for path in modules.values():
            if not path.is_file():
                name = f"{self.phase}/{path.name}"
                absent = f"{name} is not in the submission."
                raise MissingFile(full_stop(self.refused.get(name, absent)))
        return modules

    def _given(self) -> tuple[Path, ...]:
        """Return the course's folder of the phase, if learners' files may import a given file."""
        return (self.course.root / self.phase,) if self.course.given(self.phase) else ()


_LOADED: dict[tuple[Any, ...], Loaded] = {}  # the files of each folder are loaded once


def _load(
    files: LearnerFiles,
    task: Task,
    paths: Sequence[Path],
    launcher: Launcher,
    failures: Mapping[str, Failure],
) -> Loaded:
    """Import files together, without those of `failures`; after a failure, without its file.

    If it is not known which file failed, one file is imported after the other.
    """
    observation = _observe(files.with_substitutes(task, failures), paths, launcher)
    failure = observation.failure
    if failure is None:
        return Loaded(failures, _read(observation.values[0], paths))
    where = (failure.diagnosis.where or "").rpartition(":")[0]
    failed = [path for path in paths if path.name == where or len(paths) == 1]
    loaded = Loaded({**failures, **{path.name: on_import(failure, path.name) for path in failed}})
    rest = [path for path in paths if path not in failed]
    for part in [rest] if failed and rest else [[path] for path in rest]:
        more = _load(files, task, part, launcher, loaded.failures)
        loaded = Loaded(more.failures, loaded.stubs | more.stubs)
    return loaded


def _observe(task: Task, paths: Sequence[Path], launcher: Launcher) -> Observation:
    load = Task(
        function=load_files,
        world_size=1,
        inputs={"paths": [str(path) for path in paths]},
        roots=task.roots,
        path=(*task.path[:1], str(paths[0].parent.parent), *task.path[1:]),  # as in tests
        readable=task.readable,
        substitutes=task.substitutes,
        environ=task.environ,
        timeout=TIME_LIMIT,
        processor_seconds=PROCESSOR_SECONDS,
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
