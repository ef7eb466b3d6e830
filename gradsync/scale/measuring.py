"""Measure this machine: compute on one rank, all-reduce over gloo, and steps on several ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradsync.ranks import run_ranks
from gradsync.scale import on_ranks
from gradsync.scale.fitting import BatchTiming, Timing

Progress = Callable[[str], object]  # is called with the name of each measurement


@dataclass(frozen=True, slots=True)
class Plan:
    """The measurements, and which of them are fitted; the others test the predictions."""

    fitted_sizes: tuple[int, ...] = tuple(1024 * 4**i for i in range(9))  # bytes, up to 64 MiB
    other_sizes: tuple[int, ...] = tuple(2048 * 16**i for i in range(4))  # up to 8 MiB
    fitted_ranks: tuple[int, ...] = (2, 4)
    other_ranks: tuple[int, ...] = (3,)
    fitted_batches: tuple[int, ...] = (32, 128, 512, 2048)
    fitted_sequences: tuple[int, ...] = (1, 4, 16)  # batches of the small transformer
    fitted_steps: tuple[int, ...] = (512,)  # batches of steps on several ranks
    other_steps: tuple[int, ...] = (256, 1024)
    rounds: int = 3  # each measures everything, so that noise affects all figures equally
    enough: float = 25.0  # seconds after which no new round begins

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.fitted_sizes + self.other_sizes))

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(sorted(self.fitted_steps + self.other_steps))

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.fitted_ranks + self.other_ranks))


@dataclass(frozen=True, slots=True)
class StepTiming:
    """A measured step of data-parallel training."""

    ranks: int
    batch: int  # samples on each rank
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """The medians of this machine's measurements."""

    compute: tuple[BatchTiming, ...]  # of the small CNN
    transformer: tuple[BatchTiming, ...]
    all_reduces: tuple[Timing, ...]
    steps: tuple[StepTiming, ...]


def measure(plan: Plan, progress: Progress) -> Measured:
    """Measure everything in the plan, each number of ranks in turn.

    Raises:
        RankFailure: a rank failed.
        LauncherError: the ranks could not be started.
    """
    alone: list[list[BatchTiming]] = [[] for _ in plan.fitted_batches]
    reduced: dict[tuple[int, int], list[float]] = {}
    stepped: dict[tuple[int, int], list[float]] = {}
    transformer = measure_compute(plan, "transformer", progress)
    began = time.monotonic()
    for number in range(1, plan.rounds + 1):
        if number > 1 and time.monotonic() - began > plan.enough:
            break
        turn = f"round {number} of {plan.rounds}"
        progress(f"measuring compute, {turn}")
        for known, timings in zip(alone, _alone(plan.fitted_batches, "cnn"), strict=True):
            known.extend(timings)
        for ranks in plan.ranks:
            progress(f"measuring all-reduce and steps on {ranks} ranks, {turn}")
            by_size = _slowest(list(run_ranks(on_ranks.all_reduces, ranks, sizes=plan.sizes)))
            by_batch = _slowest(list(run_ranks(on_ranks.steps, ranks, batches=plan.steps)))
            for size, seconds in zip(plan.sizes, by_size, strict=True):
                reduced.setdefault((ranks, size), []).extend(seconds)
            for batch, seconds in zip(plan.steps, by_batch, strict=True):
                stepped.setdefault((ranks, batch), []).extend(seconds)
    return Measured(
        tuple(_median(timings) for timings in alone),
        tuple(transformer),
        tuple(Timing(*key, statistics.median(found)) for key, found in sorted(reduced.items())),
        tuple(StepTiming(*key, statistics.median(found)) for key, found in sorted(stepped.items())),
    )


def measure_compute(plan: Plan, model: str, progress: Progress) -> list[BatchTiming]:
    """Measure only the steps of a model, "cnn" or "transformer", on one rank."""
    progress(f"measuring compute of the small {model}")
    batches = plan.fitted_batches if model == "cnn" else plan.fitted_sequences
    return [_median(timings) for timings in _alone(batches, model)]


def _alone(batches: Sequence[int], model: str) -> list[list[BatchTiming]]:
    """Return several timings of each batch size, on one rank."""
    (values,) = run_ranks(on_ranks.alone, 1, batches=batches, model=model)
    return [[BatchTiming(*timing) for timing in timings] for timings in values]


def _slowest(by_rank: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Return, for each case, the seconds of the slowest rank in each repetition."""
    return [[max(each) for each in zip(*case, strict=True)] for case in zip(*by_rank, strict=True)]


def _median(timings: Sequence[BatchTiming]) -> BatchTiming:
    return BatchTiming(
        timings[0].batch,
        statistics.median(timing.forward for timing in timings),
        statistics.median(timing.backward for timing in timings),
        statistics.median(timing.update for timing in timings),
    )
