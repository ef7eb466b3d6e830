"""Select the tests of a grade, run several at a time, and collect their verdicts."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from gradsync.grading.suite.parallel import Turns, forked_graders
from gradsync.grading.suite.time_budget import BUDGET, TimeBudget
from gradsync.grading.suite.verdicts import REFUSED, exercise_of
from gradsync.ranks import LauncherError
from gradsync.ranks.host.launchers.fork import ForkLauncher
from gradsync.ranks.host.launchers.launcher import Launcher
from gradsync.records import Verdict

OnTest = Callable[[str, int, int], None]  # the exercise, number of tests begun before, all tests
# Errors of the grader, not of the submission. The last three mean that the test is broken: a
# submission can't cause them in the grader's process.
NOT_THE_SUBMISSIONS = (LauncherError, NameError, ImportError, SyntaxError)


class Collector:
    """Selects the tests of some exercises, or all tests, and records their verdicts."""

    def __init__(
        self,
        exercises: Sequence[str] = (),
        launcher: Launcher | None = None,
        parallel: int = 1,
        budget: TimeBudget | None = None,
        refused: Mapping[str, str] | None = None,
        on_test: OnTest = lambda *_: None,
    ) -> None:
        self.exercises = exercises
        self.refused = refused or {}  # files of the submission that do not count, and why
        self.lost: Exception | None = None  # the error that left a test without a verdict
        self.broken = ""  # what is wrong with a test of the course, with its file and line
        self.interrupted = False  # by Ctrl-C
        self._launcher = launcher
        self._on_test = on_test
        self._process = os.getpid()
        self._parallel = parallel
        self._budget = budget
        self._left_garbage = False
        self._exercises: dict[str, str] = {}  # by test
        self._verdicts: dict[str, Verdict | None] = {}  # by test, in the order of the suite

    @property
    def verdicts(self) -> list[Verdict]:
        return [verdict for verdict in self._verdicts.values() if verdict is not None]

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[REFUSED] = self.refused
        if self._budget is not None:
            config.stash[BUDGET] = self._budget

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Skip files without a test of the wanted exercises: importing them takes time.

        A hidden suite needs all files: the points of a test are its share of all tests.
        """
        is_hidden = collection_path.parent.parent.name == "hidden"
        if not self.exercises or is_hidden or not collection_path.is_file():
            return None
        text = collection_path.read_text(encoding="utf-8", errors="replace")
        return None if any(exercise in text for exercise in self.exercises) else True

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.exercises:
            items[:] = [item for item in items if exercise_of(item) in self.exercises]
            items.sort(key=lambda item: self.exercises.index(exercise_of(item)))
        self._verdicts = dict.fromkeys(item.nodeid for item in items)
        self._exercises = {item.nodeid: exercise_of(item) for item in items}
        if not self.exercises:  # early tests load modules while the ranks' process starts
            items.sort(key=lambda item: item.get_closest_marker("early") is None)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if torch := sys.modules.get("torch"):  # a suite computes little, and ranks need the cores
            torch.set_num_threads(1)
        gc.freeze()  # existing objects are not garbage: later collections skip them
        count = min(self._parallel, len(session.items))
        if count < 2 or session.testsfailed or not isinstance(self._launcher, ForkLauncher):
            return None  # use pytest's own loop, which also handles files that can't be imported
        with contextlib.closing(Turns(len(session.items))) as turns:
            work = functools.partial(self._work, session, turns)
            try:
                with forked_graders(count - 1, self._launcher, work) as others:
                    self._run(session, turns)
                    for other in others:
                        self._take_over(*other.result())
            except LauncherError as error:
                self.lost = self.lost or error
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if os.getpid() == self._process:  # only here: parallel tests share the terminal
            begun = list(self._verdicts).index(nodeid)
            self._on_test(self._exercises[nodeid], begun, len(self._verdicts))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        verdict = getattr(report, "gradsync_verdict", None)
        if verdict is not None:
            self._verdicts[report.nodeid] = verdict
            if self._budget is not None and verdict.status == "timeout" and verdict.world_size:
                self._budget.note(verdict.exercise, verdict.seconds)

    def pytest_exception_interact(
        self, node: pytest.Item | pytest.Collector, call: pytest.CallInfo[None]
    ) -> None:
        self._left_garbage = True  # the traceback's frames refer to values and to each other
        error = call.excinfo.value if call.excinfo else None
        if not isinstance(node, pytest.Item):  # a file of the suite can't be imported
            self.broken = self.broken or _described(error, node)
        elif isinstance(error, NOT_THE_SUBMISSIONS):
            self.lost = error
            if not isinstance(error, LauncherError):
                self.broken = _described(error, node)
            node.session.shouldfail = "A test could not be judged."

    def pytest_runtest_logfinish(self) -> None:
        if self._left_garbage:
            gc.collect()
        self._left_garbage = False

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # pytest also calls this when it gives up, for example if a suite can't be imported.
        self.interrupted = excinfo.type is KeyboardInterrupt

    def _run(self, session: pytest.Session, turns: Turns) -> None:
        """Run the tests that no other worker has begun, as pytest does."""
        for index in turns:
            item = session.items[index]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if session.shouldfail:
                turns.end()
                raise session.Failed(session.shouldfail)

    def _work(
        self, session: pytest.Session, turns: Turns
    ) -> tuple[dict[str, Verdict | None], Exception | None, str]:
        """Run tests in another worker process, and return their verdicts."""
        with contextlib.suppress(session.Failed):
            self._run(session, turns)
        return self._verdicts, self.lost, self.broken

    def _take_over(
        self, verdicts: dict[str, Verdict | None], lost: Exception | None, broken: str
    ) -> None:
        self._verdicts |= {test: verdict for test, verdict in verdicts.items() if verdict}
        self.lost, self.broken = self.lost or lost, self.broken or broken


def _described(error: BaseException | None, node: pytest.Item | pytest.Collector) -> str:
    """Return where a test of the course is broken, and the error: "test_steps.py:12 (...)"."""
    error = (error and error.__cause__) or error  # pytest wraps an error of an import
    root = node.config.rootpath
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    places = [(frame.filename, frame.lineno) for frame in frames]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((error.filename, error.lineno))
    ours = [place for place in places if Path(place[0]).is_relative_to(root / "tests")]
    file, line = ours[-1] if ours else (str(node.path), None)
    where = Path(file).relative_to(root).as_posix() if Path(file).is_relative_to(root) else file
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    kind = type(error).__name__
    return f"{where}:{line} ({kind}: {text})" if line else f"{where} ({kind}: {text})"
