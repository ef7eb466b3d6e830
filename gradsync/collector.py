"""The grader's pytest plugin: selects tests, runs several at a time, collects verdicts."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import sys
from collections.abc import Callable, Mapping

import pytest

from gradsync.ranks import LauncherError, symbolic
from gradsync.ranks.crew import Launcher
from gradsync.ranks.fork import ForkLauncher
from gradsync.records import Verdict
from gradsync.time_budget import KEPT, TimeBudget
from gradsync.verdicts import REFUSED, exercise_of
from gradsync.workers import Turns, side_by_side

OnTest = Callable[[str, int, int], None]  # the exercise, the tests begun before, all tests
# Errors that prevent a verdict. The last three mean that the test itself is broken.
NOT_THE_SUBMISSIONS = (LauncherError, NameError, ImportError, SyntaxError)


class Collector:
    """Selects the tests of one exercise, or all, and collects their verdicts."""

    def __init__(
        self,
        exercise: str | None = None,
        launcher: Launcher | None = None,
        workers: int = 1,
        budget: TimeBudget | None = None,
        refused: Mapping[str, str] | None = None,
        on_test: OnTest = lambda *_: None,
    ) -> None:
        self.exercise = exercise
        self.refused = refused or {}  # refused files of the submission, and why
        self.lost: Exception | None = None  # an error that prevented a verdict
        self.interrupted = False  # by Ctrl-C
        self._launcher = launcher
        self._on_test = on_test
        self._process = os.getpid()
        self._workers = workers
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
            config.stash[KEPT] = self._budget

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if self._is_wanted(item)]
        self._verdicts = dict.fromkeys(item.nodeid for item in items)
        self._exercises = {item.nodeid: exercise_of(item) for item in items}
        if self.exercise is None:  # their imports overlap with the start of the warm process
            items.sort(key=lambda item: item.get_closest_marker("early") is None)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if torch := sys.modules.get(
            "torch"
        ):  # a suite's own computations are small, and ranks need the cores
            torch.set_num_threads(1)
            symbolic.put_off()
        gc.freeze()  # objects created so far are not garbage of a test
        count = min(self._workers, len(session.items))
        if count < 2 or session.testsfailed or not isinstance(self._launcher, ForkLauncher):
            return None  # pytest's own loop runs no tests if a file can't be imported
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

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if os.getpid() == self._process:  # only here: workers share the terminal
            begun = list(self._verdicts).index(nodeid)
            self._on_test(self._exercises[nodeid], begun, len(self._verdicts))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        verdict = getattr(report, "gradsync_verdict", None)
        if verdict is not None:
            self._verdicts[report.nodeid] = verdict
            if self._budget is not None and verdict.status == "timeout" and verdict.world_size:
                self._budget.note(verdict.exercise, verdict.seconds)

    def pytest_exception_interact(self, node: pytest.Item, call: pytest.CallInfo[None]) -> None:
        self._left_garbage = True  # the frames refer to the ranks' values, and to each other
        error = call.excinfo.value if call.excinfo else None
        if isinstance(error, NOT_THE_SUBMISSIONS):
            self.lost = error
            node.session.shouldfail = "a test could not be judged"

    def pytest_runtest_logfinish(self) -> None:
        if self._left_garbage:
            gc.collect()
        self._left_garbage = False

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        # It has another type if pytest itself gives up, such as on a suite that can't be imported.
        self.interrupted = excinfo.type is KeyboardInterrupt

    def _run(self, session: pytest.Session, turns: Turns) -> None:
        """Run tests as pytest does, taking the next one that no other process has begun."""
        for index in turns:
            item = session.items[index]
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            if session.shouldfail:
                turns.end()
                raise session.Failed(session.shouldfail)

    def _work(
        self, session: pytest.Session, turns: Turns
    ) -> tuple[dict[str, Verdict | None], Exception | None]:
        """Do the same as `_run` in a worker process; return its verdicts and errors."""
        with contextlib.suppress(session.Failed):
            self._run(session, turns)
        return self._verdicts, self.lost

    def _take_over(self, verdicts: dict[str, Verdict | None], lost: Exception | None) -> None:
        self._verdicts |= {test: verdict for test, verdict in verdicts.items() if verdict}
        self.lost = self.lost or lost

    def _is_wanted(self, item: pytest.Item) -> bool:
        return self.exercise in (None, exercise_of(item))
