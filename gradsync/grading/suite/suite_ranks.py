"""Run a suite's functions on ranks, with a submission's files.

A test runs in the trusted pytest process. Only the function that it passes to `ranks` runs on the
ranks. A parameter of that function can be a learner's file, imported on the rank: `trainer` is
`template_trainer.py` of the submission, `data_loader` is `template_data_loader.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gradsync.course.catalogue import Course, CourseError, find_course
from gradsync.grading.suite.learner_files import LearnerFiles
from gradsync.grading.suite.time_budget import BUDGET, TimeBudget
from gradsync.grading.suite.verdicts import REFUSED, exercise_of
from gradsync.ranks import RankFailure, get_launcher
from gradsync.ranks.host.launchers.launcher import Launcher
from gradsync.ranks.host.supervise import observe
from gradsync.ranks.task import Task
from gradsync.records import Observation
from gradsync.testing.rules import Rule, first_match

TIME_LIMIT = 20.0  # seconds for a test's ranks: 100 times the time of a correct answer


@pytest.fixture
def ranks(
    request: pytest.FixtureRequest, ranks: Callable[..., Observation]
) -> Callable[..., Observation]:
    """In a suite, run functions with the learner's files; elsewhere, as the engine's fixture."""
    course, phase = place_of(request.path.parent)
    config, test = request.config, request.node
    submission: Path | None = config.getoption("--submission")
    if course is None and submission is None:
        return ranks
    files = None
    if course is not None:
        root = (submission or course.root).resolve()
        files = LearnerFiles(root, course, phase, config.stash.get(REFUSED, {}))
    exercise = exercise_of(test)
    return SuiteRanks(
        get_launcher(config.getoption("--ranks-launcher")),
        files,
        seed=f"{config.getoption('--seed')} {test.name}",
        exercise=exercise,
        budget=config.stash.get(BUDGET, None) if exercise else None,
    )


@functools.cache
def place_of(folder: Path) -> tuple[Course | None, str]:
    """Return the course and phase of a folder of tests, or (None, "")."""
    if folder.parent.name not in ("visible", "hidden"):
        return None, ""
    try:
        return find_course(folder), folder.name
    except CourseError:
        return None, ""


@dataclass
class SuiteRanks:
    """Runs the functions of one test; it is called like `gradsync.run_ranks`."""

    launcher: Launcher
    files: LearnerFiles | None  # None: no files are under test
    seed: str
    exercise: str = ""
    budget: TimeBudget | None = None  # None: each test has its full time limit
    seen: list[Observation] = field(default_factory=list)
    stubs: set[str] = field(default_factory=set)  # names without a body in the learner's files

    def __call__(
        self,
        probe: Callable[..., Any],
        world_size: int,
        *,
        timeout: float = TIME_LIMIT,
        promised: bool = False,
        process_group: bool = True,
        may_fail: Collection[int] = (),
        mistakes: Sequence[Rule] = (),
        **inputs: Any,
    ) -> Observation:
        """Run `probe` as `gradsync.run_ranks` does, with access to the learner's files.

        Args:
            probe: called with `rank`, `world_size`, a learner's file (`trainer`), and `inputs`.
            world_size: the number of ranks.
            timeout: seconds after which ranks that still run are stopped.
            promised: whether the guide promises this `timeout` (see `TimeBudget.limit`).
            process_group: start the default group before the function is called.
            may_fail: ranks that may die or be late, while the others continue.
            mistakes: rules that may explain a failure of the ranks better.
            **inputs: the same for every rank.

        Raises:
            RankFailure: a rank failed, or several ranks together, as in a deadlock.
            MissingFile: a file that the function needs is missing or refused.
            NotRun: earlier tests of the exercise have reached their time limits.
        """
        task = Task(
            function=probe,
            world_size=world_size,
            inputs=inputs,
            process_group=process_group,
            timeout=self._limit(timeout, promised),
            processor_seconds=math.inf if may_fail else self._processor_seconds(timeout),
            may_fail=tuple(may_fail),
            seed=f"{self.seed}, run {len(self.seen)}",
            **(self.files.settings(probe) if self.files else {}),
        )
        if self.files:
            task = self._loaded(self.files, task)
        observation = _with_full_limit(observe(task, self.launcher), task.timeout, timeout)
        self.seen.append(observation)
        if observation.failure is not None:
            raise RankFailure(first_match(observation, mistakes))
        return observation

    def source(self, file: str) -> str:
        """Return the text of a learner's file, such as "template_trainer.py", or ""."""
        path = self.files and self.files.submission / self.files.phase / file
        return path.read_text("utf-8", "replace") if path and path.is_file() else ""

    def _limit(self, seconds: float, promised: bool) -> float:
        if self.budget is None:
            return seconds
        return self.budget.limit(self.exercise, seconds, promised=promised)

    def _processor_seconds(self, seconds: float) -> float:
        if self.budget is None:
            return math.inf
        return self.budget.processor_seconds(self.exercise, seconds)

    def _loaded(self, files: LearnerFiles, task: Task) -> Task:
        """Import the learner's files, if no earlier test has; return the run with substitutes.

        Raises:
            RankFailure: a file that the task needs can't be imported.
        """
        loaded = files.load(task, self.launcher)
        self.stubs |= loaded.stubs
        for path in task.modules.values():
            if failure := loaded.failures.get(path.name):
                raise RankFailure(
                    Observation(task.world_size, (None,) * task.world_size, (), (), 0.0, failure)
                )
        return files.with_substitutes(task, loaded.failures)


def _with_full_limit(observation: Observation, limit: float, full: float) -> Observation:
    """Add to a timeout's explanation why its time limit was shorter than usual."""
    failure = observation.failure
    if failure is None or failure.status != "timeout" or limit >= full:
        return observation
    why = (
        f"The time limit of this test is usually {full:g} s. It was shorter here because other "
        "tests reached their time limits."
    )
    diagnosis = failure.diagnosis
    explained = replace(diagnosis, explanation=f"{diagnosis.explanation} {why}")
    return replace(observation, failure=replace(failure, diagnosis=explained))
