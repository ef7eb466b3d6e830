"""Measure, fit, test the fit on samples that it has not seen, and simulate more ranks."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from typing import Any

from gradsync.model import SmallCNN
from gradsync.scale import measure
from gradsync.scale.cost_model import SHAPES, CostModel, best_fit, fit
from gradsync.scale.samples import Sample
from gradsync.scale.simulation import WAYS, Job, rate, smallest_batch

KIB = 2**10
FITTED_SIZES = [KIB * 4**power for power in range(9)]  # 1 KiB to 64 MiB
HELD_OUT_SIZES = [2 * size for size in FITTED_SIZES[:-1]]  # between the fitted ones
FITTED_RANKS, HELD_OUT_RANKS = (2, 4), (3,)
BATCHES = (50, 400)  # from which fixed time and time per sample follow
SIMULATED = tuple(2**power for power in range(11))  # 1 to 1,024 ranks
GOOD = 0.8  # an efficiency that is worth its ranks


@dataclass(frozen=True, slots=True)
class Study:
    """The result: measurements, the model, and how well it predicts."""

    fitted: list[Sample]
    held_out: list[Sample]
    models: dict[str, CostModel]  # by shape
    costs: CostModel  # the better one on the fitted samples
    job: Job

    @property
    def alone(self) -> CostModel:
        """Return the costs of ranks that have a core each, for the simulation."""
        return self.costs.on_own_cores()

    @property
    def error(self) -> float | None:
        """Return the median relative error on the samples that were held out."""
        return self.costs.error(self.held_out) if self.held_out else None

    def to_json(self, batch_size: int) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "fitted": [asdict(sample) for sample in self.fitted],
            "held_out": [
                {**asdict(s), "predicted": self.costs.seconds(s.ranks, s.size)}
                for s in self.held_out
            ],
            "models": {
                name: {**asdict(model), "cores": None if math.isinf(model.cores) else model.cores}
                for name, model in self.models.items()
            },
            "chosen": self.costs.shape,
            "median_error": self.error,
            "job": asdict(self.job),
            "batch_size": batch_size,
            "samples_per_second": {
                way: {str(n): rate(self.job, self.alone, way, n, batch_size) for n in SIMULATED}
                for way in WAYS
            },
            "pays_from_batch_size": {str(n): self.pays_from(n) for n in SIMULATED[1:]},
            "efficient_from_batch_size": {str(n): self.efficient_from(n) for n in SIMULATED[1:]},
        }

    def pays_from(self, ranks: int) -> int:
        """Return the samples per rank from which so many ranks are faster than one."""
        return smallest_batch(self.job, self.alone, ranks, 1 / ranks)

    def efficient_from(self, ranks: int) -> int:
        """Return the samples per rank from which the efficiency is good."""
        return smallest_batch(self.job, self.alone, ranks, GOOD)


def measured_here() -> Study:
    """Measure all-reduces over gloo and the computation of the small CNN on this machine."""
    fitted, held_out = [], []
    for ranks in FITTED_RANKS:
        fitted += measure.all_reduces(ranks, FITTED_SIZES)
        held_out += measure.all_reduces(ranks, HELD_OUT_SIZES)
    for ranks in HELD_OUT_RANKS:
        held_out += measure.all_reduces(ranks, [*FITTED_SIZES, *HELD_OUT_SIZES])
    return study_of(fitted, held_out, cores=len(os.sched_getaffinity(0)))


def study_of(fitted: list[Sample], held_out: list[Sample], cores: float = math.inf) -> Study:
    """Fit the models to samples, and measure the computation of the small CNN here.

    Args:
        fitted: the samples that the models are fitted to.
        held_out: other samples, which they are tested on.
        cores: the number of cores that the ranks shared, if they did.
    """
    models = {shape: fit(fitted, shape, cores) for shape in SHAPES}
    return Study(fitted, held_out, models, best_fit(fitted, cores), job_here())


def job_here() -> Job:
    """Return the small CNN with its computation as measured here."""
    model = SmallCNN()
    few, many = (measure.step_seconds(model, batch) for batch in BATCHES)
    per_sample = max((many - few) / (BATCHES[1] - BATCHES[0]), 1e-9)
    fixed = max(few - per_sample * BATCHES[0], 0.0)
    return Job(sum(p.numel() * p.element_size() for p in model.parameters()), fixed, per_sample)
