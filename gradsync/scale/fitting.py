"""Fit the models of cost to measurements, and compute the errors of their predictions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from gradsync.scale.costs import ALGORITHMS, Compute, Network

Numbers = NDArray[np.float64]
FIRST_ALPHA, FIRST_BETA = 1e-5, 1e-9  # seconds, seconds per byte: the start of the search


@dataclass(frozen=True, slots=True)
class Timing:
    """A measured all-reduce."""

    ranks: int
    size: int  # bytes on each rank
    seconds: float


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """A measured step on one rank."""

    batch: int  # samples
    forward: float  # seconds
    backward: float  # seconds
    update: float  # seconds


def fit_network(timings: Sequence[Timing], cores: int | None = None) -> Network:
    """Return the network that predicts the timings best.

    Args:
        timings: all-reduces of at least two sizes.
        cores: the number of cores that the ranks share on one machine, over gloo (caches are then
            fitted, too); None if each rank has its own core or GPU.

    Raises:
        ValueError: the timings have fewer than two sizes, or a time that is not above 0.
    """
    sizes = sorted({timing.size for timing in timings})
    if len(sizes) < 2 or min(timing.seconds for timing in timings) <= 0:
        raise ValueError("A fit needs times above 0 of at least two sizes.")
    caches = [None] if cores is None else [None, *sizes[1:-2]]
    start = Network("ring", FIRST_ALPHA, FIRST_BETA, cores=cores, scatters_whole=cores is not None)
    fits = [
        _fit_one(timings, replace(start, algorithm=algorithm, cache=cache))
        for algorithm in ALGORITHMS
        for cache in caches
    ]
    return min(fits, key=lambda network: _badness(network, timings))  # the first if two are equal


def fit_compute(timings: Sequence[BatchTiming]) -> Compute:
    """Return the compute that predicts the timings of at least two batch sizes best."""
    batches = np.array([timing.batch for timing in timings], dtype=float)
    passes = np.array([timing.forward + timing.backward for timing in timings])

    def predicted(logs: Numbers) -> Numbers:
        fixed, per_sample = np.exp(logs)
        return np.asarray(fixed + per_sample * batches)

    slope = float(passes.max() / batches[passes.argmax()])
    fixed, per_sample = np.exp(_search(predicted, passes, [math.log(slope)] * 2))
    shares = [timing.backward / (timing.forward + timing.backward) for timing in timings]
    return Compute(
        float(fixed),
        float(per_sample),
        statistics.median(timing.update for timing in timings),
        statistics.median(shares),
    )


def errors(network: Network, timings: Sequence[Timing]) -> list[float]:
    """Return the relative error of each prediction: 0.25 is 25% of the measured time."""
    return [
        abs(network.all_reduce(timing.size, timing.ranks) / timing.seconds - 1)
        for timing in timings
    ]


def _fit_one(timings: Sequence[Timing], shape: Network) -> Network:
    """Return `shape` with the constants that fit best."""
    shared = shape.cores is not None and any(timing.ranks > shape.cores for timing in timings)
    measured = np.array([timing.seconds for timing in timings])

    def network(found: Numbers) -> Network:
        alpha, beta, beyond, wait = (float(number) for number in np.exp(found[:4]))
        return replace(
            shape,
            alpha=alpha,
            beta=beta,
            beta_beyond=0.0 if shape.cache is None else beyond,
            contention=float(found[4]) if shared else 0.0,
            wait=wait if shared else 0.0,
        )

    def predicted(found: Numbers) -> Numbers:
        now = network(found)
        return np.array([now.all_reduce(timing.size, timing.ranks) for timing in timings])

    logs = [math.log(number) for number in (shape.alpha, shape.beta, shape.beta, shape.alpha)]
    return network(_search(predicted, measured, [*logs, 1.0]))


def _search(
    predicted: Callable[[Numbers], Numbers], measured: Numbers, start: Sequence[float]
) -> Numbers:
    """Return the parameters whose predictions are closest to the measured seconds.

    It compares logarithms, so that an error by a factor of 2 counts the same for each size.
    `soft_l1` gives less weight to a measurement that another program disturbed.
    """

    def residuals(found: Numbers) -> Numbers:
        return np.asarray(np.log(predicted(found)) - np.log(measured))

    return np.asarray(least_squares(residuals, start, loss="soft_l1", f_scale=0.2).x)


def _badness(network: Network, timings: Sequence[Timing]) -> float:
    """Return the mean distance of the logarithms, rounded so that equal fits compare equal.

    A cache must improve it by a tenth: two more constants always fit a little better.
    """
    distance = statistics.fmean(
        abs(math.log(network.all_reduce(timing.size, timing.ranks) / timing.seconds))
        for timing in timings
    )
    return round(distance if network.cache is None else 1.1 * distance, 4)
