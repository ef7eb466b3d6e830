"""The errors of `gradsync scale` for sizes, ranks and batches that it did not measure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.figure import Figure
from gradsync.cores import available_cores
from gradsync.scale.measuring import Plan
from gradsync.scale.study import Simulated, study_machine
from gradsync.scale.tables import GOAL


def figures() -> Iterator[Figure]:
    """Measure this machine, fit a part of the times, and compare the rest with predictions."""
    found = study_machine(Plan(), available_cores(), 64, Simulated(), lambda _: None)
    for prediction in found.fit.predictions:
        error = prediction.median_error
        yield Figure(
            f"prediction of {prediction.what}",
            f"{error:.0%} off (median of {prediction.count})",
            "",
            None,
            f"{GOAL:.0%}",
            error <= GOAL,
        )
