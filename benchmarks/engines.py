"""Twenty tests on four ranks: with the `ranks` fixture and with torch's own classes for tests.

Each measurement is a complete run of pytest in a new process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from torch.testing._internal import common_distributed

from benchmarks.figure import Figure, seconds, shown
from benchmarks.four_ranks.cases import CASES
from benchmarks.start import RANKS, add_up
from gradsync import run_ranks

ROOT = Path(__file__).parents[1]
TURNS = 3
WARM = 0.060  # seconds
TIMES_FASTER = 15


def figures() -> Iterator[Figure]:
    """Measure a warm start, then the same tests with each of the classes in turns."""
    run_ranks(add_up, RANKS)  # warm
    warm = statistics.median(seconds(lambda: run_ranks(add_up, RANKS)) for _ in range(30))
    yield Figure(
        f"start {RANKS} ranks, all-reduce, end, warm",
        shown(warm),
        "",
        None,
        f"at most {shown(WARM)}",
        warm <= WARM,
    )
    ways = ["by_gradsync", "by_multi_process"]
    if hasattr(common_distributed, "MultiProcContinuousTest"):  # only in newer versions of torch
        ways.append("by_continuous")
    turns = [[pytest_seconds(way) for way in ways] for _ in range(TURNS)]
    ours, spawned, *continuous = (statistics.median(times) for times in zip(*turns, strict=True))
    what = f"{len(CASES)} tests on {RANKS} ranks, a complete run of pytest"
    yield Figure(
        what,
        shown(ours),
        f"MultiProcessTestCase: {shown(spawned)}",
        spawned / ours,
        f"{TIMES_FASTER} times faster",
        spawned >= TIMES_FASTER * ours,
    )
    for shared in continuous:
        yield Figure(
            f"{what}, ranks shared by all tests",
            shown(ours),
            f"MultiProcContinuousTest: {shown(shared)}",
            shared / ours,
            "",
            True,
        )


def pytest_seconds(way: str) -> float:
    """Return the seconds that pytest takes for the tests, without this repository's settings."""
    file = ROOT / "benchmarks" / "four_ranks" / f"{way}.py"
    options = ["-q", "-c", os.devnull, "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(file)]

    def run() -> None:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if f"{len(CASES)} passed" not in ended.stdout:
            raise RuntimeError(f"Not all tests of {way}.py passed:\n{ended.stdout}\n{ended.stderr}")

    took = seconds(run)
    print(f"  {way}: {shown(took)}", flush=True)
    return took
