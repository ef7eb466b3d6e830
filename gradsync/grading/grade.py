"""Grade one submission with test suites: make its `Report`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gradsync.course.catalogue import Audience, Course
from gradsync.errors import BROKEN, GraderError
from gradsync.grading.root_causes import explain_not_run, point_at_causes
from gradsync.grading.suite.collector import Collector, OnTest
from gradsync.grading.suite.parallel import count_parallel_tests
from gradsync.grading.suite.run import run_pytest
from gradsync.grading.suite.time_budget import TimeBudget
from gradsync.ranks import get_launcher
from gradsync.ranks.fast import dynamo
from gradsync.ranks.host.launchers.choice import LauncherName
from gradsync.records import Report, Verdict
from gradsync.submission import Submission
from gradsync.temporary_folders import unpacked

# By each rank whose backward is given a gradient, as in pipelines; 0.3 s, once instead of on each.
WANTED_SOON = ("torch.fx.experimental.symbolic_shapes",)


def grade(
    submission: Submission,
    course: Course,
    *,
    phases: Sequence[str],
    seed: int,
    audience: Audience = "hidden",
    exercises: Sequence[str] = (),
    launcher: LauncherName | None = None,
    parallel: int | None = None,
    pytest_options: Sequence[str] = (),
    on_test: OnTest = lambda *_: None,
) -> Report:
    """Run the suites of `phases` on a submission and return the report.

    The submission's code runs on the ranks only, never in this process.

    Args:
        submission: the submission.
        course: the course with the suites.
        phases: names of phases, such as "phase1".
        seed: the seed of the tests' random inputs: the same seed gives the same grade.
        audience: the visible suites, or the hidden ones, which give the points.
        exercises: run only the tests of these exercises, in this order; by default all tests.
        launcher: how ranks are started; None takes the fastest one of this system.
        parallel: how many tests run at a time, with forked ranks; None: as many as are useful.
        pytest_options: further options for pytest, such as `--exitfirst`.
        on_test: called when a test begins, with its exercise, its index and the number of tests.

    Raises:
        CourseError: a phase has no such suite.
        GraderError: pytest itself failed, a test is broken, or the ranks were lost.
    """
    began = time.monotonic()
    suites = [course.suite(audience, phase) for phase in phases]
    starter = get_launcher(launcher)
    starter.warm_up(() if exercises else WANTED_SOON)
    needs = {each.id: each.needs for phase in phases for each in course.exercises(phase)}
    count = parallel or count_parallel_tests()
    collector = Collector(exercises, starter, count, TimeBudget(needs), submission.refused, on_test)
    with unpacked(submission.files) as folder:
        own = [f"--submission={folder}", f"--seed={seed}"]
        own += [] if launcher is None else [f"--ranks-launcher={launcher}"]
        _run(suites, course.root, [*own, *pytest_options], collector)
    return Report(
        submission=submission.name,
        seed=seed,
        seconds=round(time.monotonic() - began, 2),
        verdicts=_in_order(collector.verdicts, needs),
        notes=submission.notes,
    )


def _run(suites: Sequence[Path], root: Path, options: Sequence[str], collector: Collector) -> None:
    dynamo.defer()  # the suites' optimizers need no compiler either
    code, said = run_pytest(suites, root, options, collector)
    if collector.interrupted:
        raise KeyboardInterrupt
    ended = code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    problem = collector.lost or (None if ended else f"pytest ended with {code!r}:\n{said}")
    if problem is not None:
        text = f"{BROKEN}: {collector.broken}." if collector.broken else str(problem)
        raise GraderError(text) from collector.lost


def _in_order(
    verdicts: Sequence[Verdict], needs: Mapping[str, Sequence[str]]
) -> tuple[Verdict, ...]:
    """Return the verdicts in the order of the course, with likely causes in their messages."""
    places = {exercise: place for place, exercise in enumerate(needs)}
    in_order = sorted(verdicts, key=lambda verdict: places[verdict.exercise])
    return point_at_causes(explain_not_run(in_order), needs)
