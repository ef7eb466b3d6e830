"""The pytest plugin: the `ranks` and `rng` fixtures, the `exercise` marker, and verdicts.

A test runs in the trusted pytest process. Only the function that it passes to `ranks` runs on the
ranks. A parameter of that function can be a learner's file, imported on the rank: `trainer` is
`template_trainer.py` of the submission, `data_loader` is `template_data_loader.py`.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from gradsync.course import Course, CourseError, Exercise, find_course
from gradsync.diagnose import Rule, first_match
from gradsync.loading import Loaded, Loader
from gradsync.ranks import RankFailure, get_launcher
from gradsync.ranks.crew import Launcher, rank_environ
from gradsync.ranks.launchers import LauncherName
from gradsync.ranks.observe import observe
from gradsync.ranks.task import Task
from gradsync.records import Observation
from gradsync.text import full_stop
from gradsync.time_budget import KEPT, TimeBudget
from gradsync.verdicts import REFUSED, MissingFile, exercise_of, verdict_id, verdict_of

PATIENCE = 20.0  # seconds for a test's ranks: a hundred times what a correct answer needs
# For a rank in a visible suite, so that an endless loop is reported soon.
PROCESSOR_SECONDS = 5.0
GRADED = {
    "CUDA_VISIBLE_DEVICES": "",  # hides GPUs: the same grade on every machine
    # No DNS query (resolv.conf(5)): TCPStore looks up the name of every address that connects,
    # and blocks for 5 s where a name server does not answer.
    "RES_OPTIONS": "attempts:0",
}
STANDINS = Path(__file__).parent / "standins"
POINTS = pytest.StashKey[float]()
LOADER = Loader()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradsync", "grading submissions on N ranks")
    group.addoption("--submission", type=Path, help="the folder with the files under test")
    group.addoption("--launcher", choices=get_args(LauncherName), help="how ranks are started")
    group.addoption("--seed", type=int, default=0, help="the seed of all random inputs")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "exercise(id, points): the exercise of a test, and the points for passing it"
    )
    config.addinivalue_line(
        "markers", "early: run first, since it imports much while the ranks' process still starts"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Divide a test's points by the number of its parameter sets."""
    families: dict[str, int] = {}
    for item in items:
        family = item.nodeid.split("[")[0]
        families[family] = families.get(family, 0) + 1
    for item in items:
        marker = item.get_closest_marker("exercise")
        if marker is not None:
            points = float(marker.kwargs["points"])
            item.stash[POINTS] = points / families[item.nodeid.split("[")[0]]


@dataclass
class Ranks:
    """Runs a function on N ranks: the `ranks` fixture."""

    launcher: Launcher
    submission: Path | None  # None: no files are under test
    course: Course | None
    phase: str
    seen: list[Observation]
    seed: str
    exercise: str = ""
    budget: TimeBudget | None = None  # None: each test has its full time limit
    processor_seconds: float = math.inf
    refused: Mapping[str, str] = field(default_factory=dict)  # refused files, and why
    stubs: set[str] = field(default_factory=set)  # names without a body in the learner's files

    def __call__(
        self,
        probe: Callable[..., Any],
        world_size: int,
        *,
        timeout: float = PATIENCE,
        process_group: bool = True,
        casualties: Collection[int] = (),
        mistakes: Sequence[Rule] = (),
        **inputs: Any,
    ) -> Observation:
        """Run `probe` as `gradsync.run_ranks` does, with access to the learner's files.

        Args:
            probe: its parameters are filled by name: `rank`, `world_size`, a learner's file
                (`trainer`), and `inputs`.
            world_size: the number of ranks.
            timeout: seconds after which ranks that still run are ended.
            process_group: start the default group before the function is called.
            casualties: ranks that may die or be late, while the others continue.
            mistakes: rules that may explain a failure of the ranks better.
            **inputs: the same for every rank.

        Raises:
            RankFailure: a rank failed, or all ranks together did.
            MissingFile: a file that the function needs is missing or refused.
            NotRun: earlier tests of the exercise have reached their time limits.
        """
        standins = self._standins()
        task = Task(
            function=probe,
            world_size=world_size,
            inputs=inputs,
            modules=self._modules(probe),
            roots=(self.submission,) if self.submission else (),
            path=self._path(standins),
            readable=standins,
            environ={**rank_environ(bare=True), **GRADED} if self.submission else None,
            process_group=process_group,
            timeout=self.budget.limit(self.exercise, timeout) if self.budget else timeout,
            processor_seconds=math.inf if casualties else self.processor_seconds,
            casualties=tuple(casualties),
            seed=f"{self.seed}, run {len(self.seen)}",
        )
        self._load(task)
        observation = observe(task, self.launcher)
        self.seen.append(observation)
        if observation.failure is not None:
            raise RankFailure(first_match(observation, mistakes))
        return observation

    def _load(self, task: Task) -> None:
        """Import the learner's files once for all tests.

        Raises:
            RankFailure: a file that the task needs can't be imported.
        """
        if self.submission is None or self.course is None:
            return
        folder = self.submission / self.phase
        paths = [folder / file for file in self.course.files(self.phase)]
        found = [path for path in paths if path.is_file()]
        loaded = LOADER.load(task, found, self.launcher) if found else Loaded()
        self.stubs |= loaded.stubs
        for path in task.modules.values():
            if failure := loaded.failures.get(path.name):
                raise RankFailure(
                    Observation(task.world_size, (None,) * task.world_size, (), (), 0.0, failure)
                )

    def _standins(self) -> tuple[Path, ...]:
        """Return the folder of stand-ins, if the submission lacks one of the files."""
        if self.submission is None:
            return ()
        folder, own = STANDINS / self.phase, self.submission / self.phase
        lacks = any(not (own / path.name).is_file() for path in folder.glob("*.py"))
        return (folder,) if lacks else ()

    def _path(self, standins: tuple[Path, ...]) -> tuple[str, ...]:
        """Return the folders from which a learner's file imports."""
        if self.submission is None:
            return ()
        return (str(self.submission / self.phase), *map(str, standins))

    def _modules(self, probe: Callable[..., Any]) -> dict[str, Path]:
        if self.submission is None or self.course is None:
            return {}
        wanted = probe.__code__.co_varnames[: probe.__code__.co_argcount]
        modules = {}
        for file in self.course.files(self.phase):
            name = file.removeprefix("template_").removesuffix(".py")
            path = self.submission / self.phase / file
            if name in wanted:
                if not path.is_file():
                    path_in = f"{self.phase}/{file}"
                    absent = f"{path_in} is not in the submission."
                    raise MissingFile(full_stop(self.refused.get(path_in, absent)))
                modules[name] = path
        return modules


RANKS = pytest.StashKey[Ranks]()


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Run a function on N ranks: call it with the function, `world_size=4` and keyword inputs."""
    course, phase = _place(request.path.parent)
    submission = request.config.getoption("--submission")
    if course is not None:
        submission = (submission or course.root).resolve()
    launcher = get_launcher(request.config.getoption("--launcher"))
    seed = f"{request.config.getoption('--seed')} {request.node.name}"
    exercise = exercise_of(request.node)
    is_visible = course is not None and request.path.parent.parent.name == "visible"
    runs = Ranks(
        launcher,
        submission,
        course,
        phase,
        seen=[],
        seed=seed,
        exercise=exercise,
        budget=request.config.stash.get(KEPT, None) if exercise else None,
        processor_seconds=PROCESSOR_SECONDS if is_visible else math.inf,
        refused=request.config.stash.get(REFUSED, {}),
    )
    request.node.stash[RANKS] = runs
    return runs


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Return a generator for random inputs, which depend on the seed and the test."""
    seed = request.config.getoption("--seed")
    return np.random.default_rng([seed, zlib.crc32(request.node.name.encode())])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace a failed test's report by the learner's message, and keep the verdict."""
    report = yield
    marker = item.get_closest_marker("exercise")
    decides = call.when == "call" or (call.when == "setup" and report.failed)
    if marker is not None and decides:
        exercise = _exercise_of(item, marker.args[0])
        runs = item.stash.get(RANKS, None)
        seen = runs.seen if runs else []
        verdict = verdict_of(
            error=call.excinfo.value if call.excinfo else None,
            id=verdict_id(item.path, item.name),
            exercise=marker.args[0],
            file=f"{exercise.phase}/{exercise.file}" if exercise else "",
            guide=exercise.guide if exercise else "",
            max_points=item.stash[POINTS],
            title=" ".join((getattr(item, "obj", None).__doc__ or item.name).split()),
            seconds=call.duration,
            seen=seen,
            folder=_folder_of(item),
            stubs=runs.stubs if runs else (),
        )
        seen.clear()  # otherwise all values of the ranks stay in memory until the last test is over
        report.gradsync_verdict = verdict  # type: ignore[attr-defined]
        if call.excinfo is not None and not item.config.getoption("fulltrace"):
            report.longrepr = verdict.message
    return report


@functools.cache
def _place(folder: Path) -> tuple[Course | None, str]:
    """Return the course and phase of a folder of tests, or (None, "")."""
    if folder.parent.name not in ("visible", "hidden"):
        return None, ""
    try:
        return find_course(folder), folder.name
    except CourseError:
        return None, ""


def _folder_of(item: pytest.Item) -> str:
    submission: Path | None = item.config.getoption("--submission")
    return "" if submission is None else f"{submission.resolve()}/"


def _exercise_of(item: pytest.Item, id: str) -> Exercise | None:
    course, _ = _place(item.path.parent)
    return course.find(id) if course is not None else None
