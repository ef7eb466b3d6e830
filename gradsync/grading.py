"""One submission held against a suite: its `Report`."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import secrets
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from gradsync.course import Audience, Course
from gradsync.ranks import LauncherError, get_launcher
from gradsync.ranks.crew import Launcher
from gradsync.ranks.fork import ForkLauncher
from gradsync.ranks.preload import OPTIMIZERS, preload
from gradsync.ranks.run import LauncherName
from gradsync.records import Report, Verdict
from gradsync.roots import point_at_roots
from gradsync.submission import Submission
from gradsync.verdicts import verdict_id
from gradsync.workers import Turns, count_workers, side_by_side
from gradsync.workplace import unpacked


class GraderError(Exception):
    """The grader itself failed: no submission is to blame."""


class Collector:
    """Picks the tests that are asked for, where some are, and takes down their verdicts."""

    def __init__(
        self,
        exercise: str | None = None,
        tests: Collection[str] | None = None,
        launcher: Launcher | None = None,
        workers: int = 1,
    ) -> None:
        self.exercise = exercise
        self.tests = tests
        self.lost: LauncherError | None = None  # what kept a test from being judged at all
        self.interrupted = False  # by Ctrl-C
        self._launcher = launcher
        self._workers = workers
        self._left_garbage = False
        self._verdicts: dict[str, Verdict | None] = {}  # by test, in the order of the suite

    @property
    def verdicts(self) -> list[Verdict]:
        return [verdict for verdict in self._verdicts.values() if verdict is not None]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._is_wanted(item)]
        self._verdicts = dict.fromkeys(item.nodeid for item in items)
        if self.exercise is None:  # what they load, they may load while the ranks' process starts
            items.sort(key=lambda item: item.get_closest_marker("early") is None)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if torch := sys.modules.get("torch"):  # a suite's own sums are small, and ranks want cores
            torch.set_num_threads(1)
            preload([OPTIMIZERS])  # while the ranks' process starts, not while all wait for it
        gc.freeze()  # what there is by now is none of the garbage that a test leaves
        count = min(self._workers, len(session.items))
        if count < 2 or session.testsfailed or not isinstance(self._launcher, ForkLauncher):
            return None  # pytest's own loop, which begins nothing where a file can't be imported
        with contextlib.closing(Turns(len(session.items))) as turns:
            work = functools.partial(self._work, session, turns)
            try:
                with side_by_side(count - 1, self._launcher, work) as others:
                    self._run(session, turns)
                    for other in others:
                        self._take_over(*other.result())
            except LauncherError as error:
                self.lost = self.lost or error
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        verdict = getattr(report, "gradsync_verdict", None)
        if verdict is not None:
            self._verdicts[report.nodeid] = verdict

    def pytest_exception_interact(self, node: pytest.Item, call: pytest.CallInfo[None]) -> None:
        self._left_garbage = True  # the frames hold what ranks returned, and each other
        error = call.excinfo.value if call.excinfo else None
        if isinstance(error, LauncherError):
            self.lost = error
            node.session.shouldfail = "the ranks were lost"

    def pytest_runtest_logfinish(self) -> None:
        if self._left_garbage:
            gc.collect()
        self._left_garbage = False

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # Of another type when pytest itself gives up, say on a suite that can't be imported.
        self.interrupted = excinfo.type is KeyboardInterrupt

    def _run(self, session: pytest.Session, turns: Turns) -> None:
        """Run tests as pytest does, those that nobody else has begun."""
        for index in turns:
            item = session.items[index]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)

    def _work(
        self, session: pytest.Session, turns: Turns
    ) -> tuple[dict[str, Verdict | None], LauncherError | None]:
        """Do as `_run` does, in a process beside the one that asked for it."""
        with contextlib.suppress(session.Failed):
            self._run(session, turns)
        return self._verdicts, self.lost

    def _take_over(self, verdicts: dict[str, Verdict | None], lost: LauncherError | None) -> None:
        self._verdicts |= {test: verdict for test, verdict in verdicts.items() if verdict}
        self.lost = self.lost or lost

    def _is_wanted(self, item: pytest.Item) -> bool:
        if self.tests is not None and verdict_id(item.path, item.name) not in self.tests:
            return False
        marker = item.get_closest_marker("exercise")
        return self.exercise is None or (marker is not None and marker.args[0] == self.exercise)


def grade(
    submission: Submission,
    course: Course,
    *,
    phases: Sequence[str],
    seed: int,
    audience: Audience = "hidden",
    exercise: str | None = None,
    tests: Collection[str] | None = None,
    launcher: LauncherName | None = None,
    workers: int | None = None,
    pytest_options: Sequence[str] = (),
) -> Report:
    """Run the suites of `phases` on a submission and return what they say.

    The submission's code runs on the ranks alone, never in this process.

    Args:
        submission: what was handed in.
        course: whose suites are run.
        phases: "phase1", "phase2".
        seed: from which tests draw their inputs: the same seed, the same grade.
        audience: the visible suites, or the hidden ones that a grade is made of.
        exercise: run the tests of this one alone.
        tests: run these alone, by the ids of their verdicts.
        launcher: how ranks are started; None takes the fastest that this system has.
        workers: how many tests run at a time, with forked ranks; None: what the machine can.
        pytest_options: more of pytest's own, such as `--exitfirst`.

    Raises:
        CourseError: a phase has no such suite.
        GraderError: pytest itself failed, or the ranks could not be started or were lost.
    """
    began = time.monotonic()
    suites = [course.suite(audience, phase) for phase in phases]
    starter = get_launcher(launcher)
    starter.warm_up()
    collector = Collector(exercise, tests, starter, workers or count_workers())
    with unpacked(submission.files) as folder:
        options = [f"--submission={folder}", f"--seed={seed}", *pytest_options]
        if launcher is not None:
            options.append(f"--launcher={launcher}")
        _run_pytest(suites, course.root, options, collector)
    return Report(
        submission=submission.name,
        seed=seed,
        seconds=time.monotonic() - began,
        verdicts=_in_order(collector.verdicts, course, phases),
        notes=submission.notes,
    )


def draw_seed() -> int:
    return secrets.randbelow(2**31)


def _run_pytest(
    suites: Sequence[Path], root: Path, options: Sequence[str], collector: Collector
) -> None:
    # Only our own plugin, no configuration and no cache: nothing but the suite has a say.
    isolated = ["--disable-plugin-autoload", "-p", "gradsync.plugin", "-p", "no:cacheprovider"]
    # Two of pytest's own only wait for the garbage collector at the end, one keeps log records.
    isolated += ["-p", "no:unraisableexception", "-p", "no:threadexception", "-p", "no:logging"]
    isolated += ["-c", os.devnull, f"--rootdir={root}", "--import-mode=importlib"]
    said = io.StringIO()
    with _no_collecting(), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(
            [*isolated, "-q", *options, *map(str, suites)],
            plugins=[collector],
        )
    if collector.interrupted:
        raise KeyboardInterrupt
    if collector.lost is not None:
        raise GraderError(str(collector.lost)) from collector.lost
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise GraderError(f"pytest ended with {code!r}:\n{said.getvalue()[-4000:]}")


@contextlib.contextmanager
def _no_collecting() -> Iterator[None]:
    """Look for no garbage unasked: a suite leaves little, and torch would be gone through."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def _in_order(
    verdicts: Sequence[Verdict], course: Course, phases: Sequence[str]
) -> tuple[Verdict, ...]:
    """Return the verdicts in the order of the course, those of symptoms pointing at their roots."""
    exercises = [exercise for phase in phases for exercise in course.exercises(phase)]
    ids = [exercise.id for exercise in exercises]
    in_order = sorted(verdicts, key=lambda verdict: ids.index(verdict.exercise))
    return point_at_roots(in_order, {exercise.id: exercise.needs for exercise in exercises})
