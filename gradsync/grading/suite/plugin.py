"""The pytest plugin of suites: the exercise, points and inputs of a test, and its verdict."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Generator, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from gradsync.course.settings import read_settings
from gradsync.grading.suite import suite_ranks
from gradsync.grading.suite.suite_ranks import SuiteRanks, place_of
from gradsync.grading.suite.verdicts import verdict_id, verdict_of
from gradsync.pytest_plugin import HAS_OWN_RANKS

PHASE_POINTS = 100  # of all hidden tests of a phase, if course.toml gives no other number
POINTS = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradsync", "grading submissions")
    group.addoption("--submission", type=Path, help="the folder with the files under test")
    group.addoption("--seed", type=int, default=0, help="the seed of all random inputs")


def pytest_configure(config: pytest.Config) -> None:
    # Of fixtures with the same name, pytest uses the one that was registered last. At this point
    # the engine's plugin is registered, so this overrides its fixture `ranks`.
    config.pluginmanager.register(suite_ranks)
    config.stash[HAS_OWN_RANKS] = True


@pytest.hookimpl(tryfirst=True)  # before plugins that remove tests: shares are of all tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each hidden test its share of the phase's points; a visible test's weight is its points.

    The points in a test's marker are its weight, which its parameter sets share.
    """
    weights = _weights(items)
    totals: dict[Path, Fraction] = defaultdict(Fraction)
    for item, weight in weights.items():
        totals[item.path.parent] += weight
    scales = {
        suite: _phase_points(suite) / total
        for suite, total in totals.items()
        if suite.parent.name == "hidden" and total
    }
    for item, weight in weights.items():
        item.stash[POINTS] = float(weight * scales.get(item.path.parent, 1))


def _phase_points(suite: Path) -> Fraction:
    course, phase = place_of(suite)
    points = read_settings(course.root).points if course is not None else {}
    return Fraction(points.get(phase, PHASE_POINTS))


def _weights(items: Sequence[pytest.Item]) -> dict[pytest.Item, Fraction]:
    """Return the weight of each test of an exercise; fractions, so that thirds add up to one."""
    families = Counter(item.nodeid.split("[")[0] for item in items)
    return {
        item: Fraction(marker.kwargs["points"]) / families[item.nodeid.split("[")[0]]
        for item in items
        if (marker := item.get_closest_marker("exercise")) is not None
    }


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
        course, _ = place_of(item.path.parent)
        exercise = course.find(marker.args[0]) if course is not None else None
        submission: Path | None = item.config.getoption("--submission")
        ranks = item.funcargs.get("ranks") if isinstance(item, pytest.Function) else None
        seen, stubs = (ranks.seen, ranks.stubs) if isinstance(ranks, SuiteRanks) else ([], set())
        verdict = verdict_of(
            error=call.excinfo.value if call.excinfo else None,
            id=verdict_id(item.path, item.name),
            exercise=marker.args[0],
            file=f"{exercise.phase}/{exercise.file}" if exercise else "",
            guide=exercise.guide if exercise else "",
            max_points=item.stash[POINTS],
            title=title_of(item),
            seconds=call.duration,
            seen=seen,
            folder="" if submission is None else f"{submission.resolve()}/",
            stubs=stubs,
        )
        seen.clear()  # otherwise all values of the ranks stay in memory until the last test is over
        report.gradsync_verdict = verdict  # type: ignore[attr-defined]
        if call.excinfo is not None and not item.config.getoption("fulltrace"):
            report.longrepr = verdict.message
    return report


def title_of(item: pytest.Item) -> str:
    """Return the docstring of a test on one line."""
    return " ".join((getattr(item, "obj", None).__doc__ or item.name).split())
