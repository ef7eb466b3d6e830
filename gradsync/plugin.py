"""The pytest plugin: the `ranks` and `rng` fixtures, the `exercise` marker, and verdicts.

A test runs in the trusted pytest process; only the function that it hands to `ranks` runs on the
ranks, beside the learner's file if it asks for one by a parameter's name: `trainer` is
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
from gradsync.ranks.observe import observe
from gradsync.ranks.run import LauncherName
from gradsync.ranks.task import Task
from gradsync.records import Observation
from gradsync.time_budget import KEPT, TimeBudget
from gradsync.verdicts import REFUSED, MissingFile, exercise_of, verdict_id, verdict_of

PATIENCE = 20.0  # seconds a test's ranks may take: a hundred times what a correct answer needs
# Of a rank in a visible suite: an endless loop is reported soon, on the learner's own machine.
PROCESSOR_SECONDS = 5.0
GRADED = {
    "CUDA_VISIBLE_DEVICES": "",  # the same grade on every machine
    # No DNS query (resolv.conf(5)): TCPStore looks up the name of every address that connects,
    # and blocks for 5 s where a name server does not answer.
    "RES_OPTIONS": "attempts:0",
}
STANDINS = Path(__file__).parent / "standins"
POINTS = pytest.StashKey[float]()
LOADER = Loader()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradsync", "grading submissions on N ranks")
    group.addoption("--submission", type=Path, help="the folder whose files are judged")
    group.addoption("--launcher", choices=get_args(LauncherName), help="how ranks are started")
    group.addoption("--seed", type=int, default=0, help="what all that is drawn follows from")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "exercise(id, points): what the test is of, and what passing it is worth"
    )
    config.addinivalue_line(
        "markers", "early: loads much, which it may do while the ranks' process still starts"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share a test's points among its parameter sets."""
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
    submission: Path | None  # None: the function stands alone
    course: Course | None
    phase: str
    seen: list[Observation]
    seed: str
    exercise: str = ""
    budget: TimeBudget | None = None  # None: each test has all of its time
    processor_seconds: float = math.inf
    refused: Mapping[str, str] = field(default_factory=dict)  # files that don't count, and why
    stubs: set[str] = field(default_factory=set)  # names in the learner's files without a body

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
        """Run `probe` as `gradsync.run_ranks` does, with the learner's files at hand.

        Args:
            probe: its parameters are filled by name: `rank`, `world_size`, a learner's file
                (`trainer`), and `inputs`.
            world_size: the number of ranks.
            timeout: seconds until ranks that still run are ended.
            process_group: start the default group before the function is called.
            casualties: ranks that may die or be late, while the others go on.
            mistakes: rules that may know better what a failure of the ranks means.
            **inputs: the same for every rank.

        Raises:
            RankFailure: the ranks did not come to their end.
            MissingFile: the submission lacks a file that the function asks for, or it is refused.
            NotRun: tests of the exercise have run into their time limits before.
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
            RankFailure: a file that the task is about can't be imported.
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
        """Return the folder of what stands in for files, if the submission lacks one of them."""
        if self.submission is None:
            return ()
        folder, own = STANDINS / self.phase, self.submission / self.phase
        lacks = any(not (own / path.name).is_file() for path in folder.glob("*.py"))
        return (folder,) if lacks else ()

    def _path(self, standins: tuple[Path, ...]) -> tuple[str, ...]:
        """Return the folders that a learner's file imports from."""
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
                    absent = f"{path_in} is not in the submission"
                    raise MissingFile(self.refused.get(path_in, absent))
                modules[name] = path
        return modules


RANKS = pytest.StashKey[Ranks]()


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Call it with a function, `world_size=4` and inputs by name, for what N ranks return."""
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
    """Draw inputs: afresh for each seed, the same for the same seed and test."""
    seed = request.config.getoption("--seed")
    return np.random.default_rng([seed, zlib.crc32(request.node.name.encode())])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say in one message what a learner reads, and keep the verdict for a grader."""
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
        seen.clear()  # else all that the ranks returned stays until the last test is over
        report.gradsync_verdict = verdict  # type: ignore[attr-defined]
        if call.excinfo is not None and not item.config.getoption("fulltrace"):
            report.longrepr = verdict.message
    return report


@functools.cache
def _place(folder: Path) -> tuple[Course | None, str]:
    """Return the course and phase that a folder of tests belongs to, if it is a suite's."""
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
