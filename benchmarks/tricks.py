"""The gain of each trick of `gradsync.ranks.fast`: the same runs with it and without it."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator

from benchmarks.figure import Figure, median_seconds, seconds, shown
from gradsync.ranks.fast import SWITCH, TRICKS

RANKS = 4
TIMES = 3  # processes with a trick, and the same number without it, in turns
LEAST = 1.05  # a trick that gains less is removed
Times = dict[str, float]  # name of a measurement: seconds


def figures() -> Iterator[Figure]:
    """Measure each trick by the runs that it makes faster, and show the largest gain."""
    for trick in TRICKS:
        pairs = [(_measured(""), _measured(trick)) for _ in range(TIMES)]
        with_it, without = (_medians([pair[i] for pair in pairs]) for i in (0, 1))
        best = max(with_it, key=lambda what: without[what] / with_it[what])
        gain = without[best] / with_it[best]
        yield Figure(
            f"{trick}: {best}",
            shown(with_it[best]),
            f"without it: {shown(without[best])}",
            gain,
            f"at least {LEAST} times faster",
            gain >= LEAST,
        )


def _measured(off: str) -> Times:
    """Measure in a new process in which these tricks are off."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tricks"],
        env={**os.environ, SWITCH: off},
        stdout=subprocess.PIPE,
        check=True,
    )
    times: Times = json.loads(done.stdout.splitlines()[-1])  # the ranks may print lines before it
    return times


def _medians(measured: list[Times]) -> Times:
    return {what: statistics.median(times[what] for times in measured) for what in measured[0]}


def measure() -> Times:
    """Measure in this process: the first run with its imports, then the medians of later runs."""
    from gradsync import run_ranks

    def later(function: Callable[[], object], times: int) -> float:
        for _ in range(2):  # after the first run, the warm process imports more
            run_ranks(function, RANKS)
        return median_seconds(lambda: run_ranks(function, RANKS), times)

    first = seconds(lambda: run_ranks(train, RANKS))
    return {
        "first run": first,
        "start, all-reduce, end": later(add_up, 25),
        "a functional collective": later(add_functionally, 7),
    }


def add_up() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1000))


def add_functionally() -> None:
    import torch
    from torch.distributed import _functional_collectives as functional

    functional.all_reduce(torch.ones(10), "sum", list(range(RANKS)))


def train() -> None:
    """Take a step with an optimizer, which imports torch's compiler unless it is deferred."""
    import torch

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    print(json.dumps(measure()))
