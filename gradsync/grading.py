"""One submission held against a suite: its `Report`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gradsync.collector import Collector, OnTest
from gradsync.course import Audience, Course
from gradsync.errors import GraderError
from gradsync.ranks import LauncherError, dynamo, get_launcher
from gradsync.ranks.run import LauncherName
from gradsync.records import Report, Verdict
from gradsync.roots import explain_not_run, point_at_roots
from gradsync.submission import Submission
from gradsync.suites import run_pytest
from gradsync.time_budget import TimeBudget
from gradsync.workers import count_workers
from gradsync.workplace import unpacked


def grade(
    submission: Submission,
    course: Course,
    *,
    phases: Sequence[str],
    seed: int,
    audience: Audience = "hidden",
    exercise: str | None = None,
    launcher: LauncherName | None = None,
    workers: int | None = None,
    pytest_options: Sequence[str] = (),
    on_test: OnTest = lambda *_: None,
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
        launcher: how ranks are started; None takes the fastest that this system has.
        workers: how many tests run at a time, with forked ranks; None: what the machine can.
        pytest_options: more of pytest's own, such as `--exitfirst`.
        on_test: called as a test begins: its exercise, how many began before, of how many.

    Raises:
        CourseError: a phase has no such suite.
        GraderError: pytest itself failed, a test is broken, or the ranks were lost.
    """
    began = time.monotonic()
    suites = [course.suite(audience, phase) for phase in phases]
    starter = get_launcher(launcher)
    starter.warm_up()
    needs = {each.id: each.needs for phase in phases for each in course.exercises(phase)}
    count = workers or count_workers()
    collector = Collector(exercise, starter, count, TimeBudget(needs), submission.refused, on_test)
    with unpacked(submission.files) as folder:
        own = [f"--submission={folder}", f"--seed={seed}", *_launcher_option(launcher)]
        _run(suites, course.root, [*own, *pytest_options], collector)
    return Report(
        submission=submission.name,
        seed=seed,
        seconds=time.monotonic() - began,
        verdicts=_in_order(collector.verdicts, needs),
        notes=submission.notes,
    )


def draw_seed() -> int:
    return secrets.randbelow(2**48)  # more than a rank can try to find out the others' inputs


def _launcher_option(launcher: LauncherName | None) -> list[str]:
    return [] if launcher is None else [f"--launcher={launcher}"]


def _run(suites: Sequence[Path], root: Path, options: Sequence[str], collector: Collector) -> None:
    dynamo.put_off()  # a suite's own optimizers need no compiler either
    code, said = run_pytest(suites, root, options, collector)
    if collector.interrupted:
        raise KeyboardInterrupt
    if (lost := collector.lost) is not None:
        text = str(lost)
        if not isinstance(lost, LauncherError):
            text = f"a test is broken ({type(lost).__name__}: {lost})"
        raise GraderError(text) from lost
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise GraderError(f"pytest ended with {code!r}:\n{said}")


def _in_order(
    verdicts: Sequence[Verdict], needs: Mapping[str, Sequence[str]]
) -> tuple[Verdict, ...]:
    """Return the verdicts in the order of the course, those of symptoms pointing at their roots."""
    places = {exercise: place for place, exercise in enumerate(needs)}
    in_order = sorted(verdicts, key=lambda verdict: places[verdict.exercise])
    return point_at_roots(explain_not_run(in_order), needs)
