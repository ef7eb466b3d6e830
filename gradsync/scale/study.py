"""Make a study for `gradsync scale`: measure, fit, test the predictions, and forecast."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gradsync.scale.costs import FLOAT, Compute, Network, crowding
from gradsync.scale.fitting import Timing, errors, fit_compute, fit_network
from gradsync.scale.measuring import (
    Measured,
    Plan,
    Progress,
    StepTiming,
    measure,
    measure_compute,
)
from gradsync.scale.on_ranks import LAYERS, TOKENS, WIDTH, gradient_bytes
from gradsync.scale.strategies import (
    STRATEGIES,
    PayingBatches,
    Step,
    Workload,
    overlapped,
    paying_batches,
    plain,
    speedup,
)
from gradsync.scale.transformers import WAYS, Cost, Transformer, parameters_of

RANKS = tuple(2**power for power in range(11))  # 1 to 1,024


@dataclass(frozen=True, slots=True)
class Prediction:
    """The error of predictions for measurements that were not used for the fit."""

    what: str
    count: int
    median_error: float  # relative to the measured seconds


@dataclass(frozen=True, slots=True)
class Fit:
    """A network that was fitted to a part of the timings."""

    network: Network
    timings: tuple[Timing, ...]
    fitted: tuple[Timing, ...]  # the part of `timings` that was used for the fit
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True)
class Forecast:
    """A simulated step on a number of ranks."""

    strategy: str
    ranks: int
    batch: int  # samples on each rank
    step: Step
    speedup: float  # samples per second, divided by one rank's


@dataclass(frozen=True, slots=True)
class Split:
    """A simulated step of a transformer that is split over a number of ranks."""

    way: str
    ranks: int
    cost: Cost
    speedup: float  # samples per second, divided by one rank's


@dataclass(frozen=True, slots=True)
class Simulated:
    """The model of the forecasts; None: the small CNN and the small transformer, measured here."""

    parameters: int | None = None
    sample_ms: float | None = None  # milliseconds of forward and backward
    transformer: tuple[int, int, int] | None = None  # layers, width, and tokens of a sample


@dataclass(frozen=True, slots=True)
class Study:
    """All results."""

    source: str  # of the timings, such as "nccl-tests"
    fit: Fit
    measured: Workload  # of the measured steps
    workload: Workload  # of the forecasts
    batch: int
    forecasts: tuple[Forecast, ...]
    paying: dict[str, tuple[PayingBatches, ...]]  # by strategy
    transformer: Transformer | None  # None: the simulated model is not known to be one
    splits: tuple[Split, ...]
    steps: tuple[StepTiming, ...] = ()
    slower: float = 1.0  # the compute time of these steps, divided by the time on one rank
    load: float = 0.0  # processes that ran or waited for a core before the measurement


def study_machine(
    plan: Plan,
    cores: int,
    batch: int,
    simulated: Simulated,
    progress: Progress,
) -> Study:
    """Measure and predict the small CNN on this machine, and forecast the simulated model.

    Args:
        plan: the measurements to make.
        cores: the number of cores that this process may use.
        batch: samples on each rank in the forecasts.
        simulated: the model of the forecasts.
        progress: is called with the name of each measurement.
    """
    load = os.getloadavg()[0]
    measured = measure(plan, progress)
    fit, compute = fit_measured(measured, plan, cores)
    alone = Workload(compute, gradient_bytes())
    slower, steps = fit_steps(measured, plan, alone, fit.network)
    fit = replace(fit, predictions=(*fit.predictions, steps))
    models = _models(simulated, compute, fit_compute(measured.transformer))
    found = study("gloo on this machine", fit, alone, *models, batch, measured.steps)
    return replace(found, slower=slower, load=load)


def study_cluster(
    timings: Sequence[Timing],
    batch: int,
    simulated: Simulated,
    progress: Progress,
) -> Study:
    """Forecast a model on a cluster, with measured all-reduces; see `study_machine`."""
    computes = [Compute(0.0, 0.0)] * 2
    if simulated.sample_ms is None:
        names = ("cnn", "transformer")
        computes = [fit_compute(measure_compute(Plan(), name, progress)) for name in names]
    workload, transformer = _models(simulated, *computes)
    return study("nccl-tests", fit_cluster(timings), workload, workload, transformer, batch)


def fit_measured(measured: Measured, plan: Plan, cores: int) -> tuple[Fit, Compute]:
    """Fit a part of this machine's measurements, and predict the others."""
    fitted = [
        timing
        for timing in measured.all_reduces
        if timing.ranks in plan.fitted_ranks and timing.size in plan.fitted_sizes
    ]
    compute = fit_compute(measured.compute)
    network = fit_network(fitted, cores)
    sizes, ranks = [], []
    for timing in measured.all_reduces:
        if timing.ranks in plan.other_ranks:
            ranks.append(timing)
        elif timing.size in plan.other_sizes:
            sizes.append(timing)
    predictions = [
        _prediction("all-reduce, sizes that were not fitted", errors(network, sizes)),
        _prediction("all-reduce, ranks that were not fitted", errors(network, ranks)),
    ]
    return Fit(network, measured.all_reduces, tuple(fitted), tuple(predictions)), compute


def fit_cluster(timings: Sequence[Timing]) -> Fit:
    """Fit every second size of a cluster's timings, and predict the others."""
    sizes = sorted({timing.size for timing in timings})
    kept = set(sizes if len(sizes) < 4 else [*sizes[::2], sizes[-1]])
    fitted = [timing for timing in timings if timing.size in kept]
    others = [timing for timing in timings if timing.size not in kept]
    network = fit_network(fitted)
    what = "all-reduce, sizes that were not fitted"
    predictions = (_prediction(what, errors(network, others)),) if others else ()
    return Fit(network, tuple(timings), tuple(fitted), predictions)


def fit_steps(
    measured: Measured, plan: Plan, workload: Workload, network: Network
) -> tuple[float, Prediction]:
    """Fit the factor by which compute is slower on several ranks, and predict the other steps.

    It is slower because the ranks share the memory, and wait for the slowest rank in each step.

    Returns:
        The factor, at least 1, and the errors of the steps that were not fitted.
    """
    fitted: list[StepTiming] = []
    others: list[StepTiming] = []
    for step in measured.steps:
        is_fitted = step.ranks in plan.fitted_ranks and step.batch in plan.fitted_steps
        (fitted if is_fitted else others).append(step)
    factors = [_together(step, workload, network) for step in fitted]
    slower = max(1.0, statistics.median(factors))
    found = [
        abs(predicted_step(step, workload, network, slower) / step.seconds - 1) for step in others
    ]
    return slower, _prediction("training steps, batches or ranks that were not fitted", found)


def predicted_step(step: StepTiming, workload: Workload, network: Network, slower: float) -> float:
    """Return the seconds for a step on several ranks that share the network's cores."""
    compute = slower * workload.compute.step(step.batch)
    sent = network.all_reduce(workload.gradients, step.ranks)
    return crowding(step.ranks, network.cores) * compute + sent


def _together(step: StepTiming, workload: Workload, network: Network) -> float:
    """Return the compute time of a measured step, divided by the time on one rank."""
    sent = network.all_reduce(workload.gradients, step.ranks)
    alone = crowding(step.ranks, network.cores) * workload.compute.step(step.batch)
    return (step.seconds - sent) / alone


def study(
    source: str,
    fit: Fit,
    measured: Workload,
    workload: Workload,
    transformer: Transformer | None,
    batch: int,
    steps: Sequence[StepTiming] = (),
) -> Study:
    """Forecast steps on up to 1,024 ranks, each on its own core or GPU."""
    network = fit.network.on_own_cores()
    forecasts = tuple(
        Forecast(
            name,
            ranks,
            batch,
            strategy(workload, network, batch, ranks),
            speedup(strategy, workload, network, batch, ranks),
        )
        for name, strategy in STRATEGIES.items()
        for ranks in RANKS
    )
    paying = {
        name: tuple(paying_batches(strategy, workload, network, ranks) for ranks in RANKS[1:])
        for name, strategy in STRATEGIES.items()
        if strategy in (plain, overlapped)
    }
    splits = tuple(_splits(transformer, network, batch)) if transformer else ()
    return Study(
        source, fit, measured, workload, batch, forecasts, paying, transformer, splits, tuple(steps)
    )


def _splits(model: Transformer, network: Network, batch: int) -> Iterator[Split]:
    """Yield each way to split the model over each number of ranks for which there is one."""
    for name, way in WAYS.items():
        for ranks in RANKS:
            if cost := way(model, network, batch, ranks):
                gained = ranks * model.compute.step(batch) / cost.seconds
                yield Split(name, ranks, cost, gained)


def _prediction(what: str, found: Sequence[float]) -> Prediction:
    return Prediction(what, len(found), statistics.median(found))


def _models(
    simulated: Simulated, cnn: Compute, transformer: Compute
) -> tuple[Workload, Transformer | None]:
    """Return the data-parallel workload of the forecasts, and the transformer, if it is known.

    Args:
        simulated: the user's choice.
        cnn: the compute of the small CNN.
        transformer: the compute of the small transformer.
    """
    size, milliseconds = simulated.parameters, simulated.sample_ms
    own = None if milliseconds is None else Compute(0.0, milliseconds / 1e3)
    small = Transformer(LAYERS, WIDTH, TOKENS, transformer, parameters_of(LAYERS, WIDTH))
    if simulated.transformer is None:
        workload = Workload(own or cnn, gradient_bytes() if size is None else FLOAT * size)
        return workload, small if size is None and own is None else None
    model = small.on(*simulated.transformer)
    model = replace(model, compute=own or model.compute, parameters=size or model.parameters)
    return Workload(model.compute, model.size), model
