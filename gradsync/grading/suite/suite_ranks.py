"""Run a suite's functions on ranks, with a submission's files.

A test runs in the trusted pytest process. Only the function that it passes to `ranks` runs on the
ranks. A parameter of that function can be a learner's file, imported on the rank: `trainer` is
`template_trainer.py` of the submission, `data_loader` is `template_data_loader.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradsync.course.catalogue import Course
from gradsync.grading.suite.learner_files import Loaded, Loader
from gradsync.grading.suite.time_budget import TimeBudget
from gradsync.grading.suite.verdicts import MissingFile
from gradsync.ranks import RankFailure, get_launcher
from gradsync.ranks.host.launchers.launcher import Launcher, rank_environ
from gradsync.ranks.host.observe import observe
from gradsync.ranks.task import Task
from gradsync.records import Observation
from gradsync.submission import Submission
from gradsync.testing.rules import Rule, first_match
from gradsync.text import full_stop

TIME_LIMIT = 20.0  # seconds for a test's ranks: 100 times the time of a correct answer
GRADED = {
    "CUDA_VISIBLE_DEVICES": "",  # hides GPUs: the same grade on every machine
    # No DNS query (resolv.conf(5)): TCPStore looks up the name of every address that connects,
    # and blocks for 5 s where a name server does not answer.
    "RES_OPTIONS": "attempts:0",
}
LOADER = Loader()


@dataclass
class SuiteRanks:
    """The `ranks` fixture of a suite: it is called like `gradsync.run_ranks`."""

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
            modules=self._modules(probe),
            roots=(self.submission,) if self.submission else (),
            path=self._path(),
            readable=self._standins(),
            environ={**rank_environ(bare=True), **GRADED} if self.submission else None,
            process_group=process_group,
            timeout=self._limit(timeout, promised),
            processor_seconds=math.inf if may_fail else self.processor_seconds,
            may_fail=tuple(may_fail),
            seed=f"{self.seed}, run {len(self.seen)}",
        )
        self._load(task)
        observation = _with_full_limit(observe(task, self.launcher), task.timeout, timeout)
        self.seen.append(observation)
        if observation.failure is not None:
            raise RankFailure(first_match(observation, mistakes))
        return observation

    def _limit(self, seconds: float, promised: bool) -> float:
        if self.budget is None:
            return seconds
        return self.budget.limit(self.exercise, seconds, promised=promised)

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
        if self.submission is None or self.course is None:
            return ()
        folder, own = self.course.standins(self.phase), self.submission / self.phase
        lacks = any(not (own / path.name).is_file() for path in folder.glob("*.py"))
        return (folder,) if lacks else ()

    def _path(self) -> tuple[str, ...]:
        """Return the folders from which a learner's file imports."""
        if self.submission is None:
            return ()
        return (str(self.submission / self.phase), *map(str, self._standins()))

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


def unsuite_ranks(
    submission: Submission, folder: Path, course: Course, phase: str, seed: str
) -> SuiteRanks:
    """Return ranks for a command that runs a phase's files, unpacked in `folder`, ungraded."""
    return SuiteRanks(
        get_launcher(), folder, course, phase, seen=[], seed=seed, refused=submission.refused
    )


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
