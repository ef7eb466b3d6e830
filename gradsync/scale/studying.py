"""Make a study: measure, fit and forecast."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from gradsync.scale.compute import Compute
from gradsync.scale.fitting import Timing, fit_compute
from gradsync.scale.measuring.machine import Plan, Progress, measure, measure_compute
from gradsync.scale.measuring.training import gradient_bytes
from gradsync.scale.strategies import Workload
from gradsync.scale.study import Study, fit_cluster, fit_measured, fit_steps, study

FLOAT = 4  # bytes of a gradient's element


def study_machine(
    plan: Plan,
    cores: int,
    batch: int,
    parameters: int | None,
    sample_ms: float | None,
    progress: Progress,
) -> Study:
    """Measure and predict the small CNN on this machine, and forecast a workload.

    Args:
        plan: the measurements to make.
        cores: the number of cores that this process may use.
        batch: samples on each rank in the forecasts.
        parameters: the parameters of the model to forecast; None: the small CNN's.
        sample_ms: milliseconds of its forward and backward; None: the small CNN's.
        progress: is called with the name of each measurement.
    """
    load = os.getloadavg()[0]
    measured = measure(plan, progress)
    fit, compute = fit_measured(measured, plan, cores)
    alone = Workload(compute, gradient_bytes())
    slower, steps = fit_steps(measured, plan, alone, fit.network)
    fit = replace(fit, predictions=(*fit.predictions, steps))
    workload = _workload(compute, parameters, sample_ms)
    found = study("gloo on this machine", fit, alone, workload, batch, measured.steps)
    return replace(found, slower=slower, load=load)


def study_cluster(
    timings: Sequence[Timing],
    batch: int,
    parameters: int | None,
    sample_ms: float | None,
    progress: Progress,
) -> Study:
    """Forecast a workload on a cluster, with measured all-reduces; see `study_machine`."""
    compute = Compute(0.0, 0.0)
    if sample_ms is None:
        compute = fit_compute(measure_compute(Plan(), progress))
    workload = _workload(compute, parameters, sample_ms)
    return study("nccl-tests", fit_cluster(timings), workload, workload, batch)


def _workload(compute: Compute, parameters: int | None, sample_ms: float | None) -> Workload:
    if sample_ms is not None:
        compute = Compute(0.0, sample_ms / 1e3)
    size = gradient_bytes() if parameters is None else FLOAT * parameters
    return Workload(compute, size)
