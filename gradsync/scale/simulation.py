"""The time of a training step on N ranks, for four ways to train."""

from __future__ import annotations

from dataclasses import dataclass

from gradsync.scale.cost_model import CostModel

BACKWARD = 2 / 3  # of a step's computation; the forward pass is the rest
WAYS = ("data parallel", "buckets", "accumulation", "sharding")


@dataclass(frozen=True, slots=True)
class Job:
    """A model that is trained, on ranks with equal batches."""

    gradient_bytes: int
    fixed: float  # seconds of computation of a step, whatever the batch
    per_sample: float  # seconds
    buckets: int = 4
    accumulation: int = 4  # microbatches of `batch_size` in a step

    def computing(self, batch_size: float) -> float:
        """Return the seconds that a rank computes in a step."""
        return self.fixed + self.per_sample * batch_size


def step(job: Job, costs: CostModel, way: str, ranks: int, batch_size: int) -> float:
    """Return the seconds of a step in which each rank computes `batch_size` samples.

    With accumulation it computes `job.accumulation` such batches before one all-reduce.
    """
    computing = job.computing(batch_size)
    if way == "buckets":
        return _overlapping(job, costs, ranks, computing)
    averaging = costs.seconds(ranks, job.gradient_bytes)
    if way == "accumulation":
        return job.accumulation * computing + averaging
    if way == "sharding" and ranks > 1:
        # A reduce-scatter and an all-gather have the messages and bytes of a ring's all-reduce,
        # and are two calls instead of one.
        averaging += costs.call
    return computing + averaging


def _overlapping(job: Job, costs: CostModel, ranks: int, computing: float) -> float:
    """Let a bucket's all-reduce begin when its gradients are ready and the last one has ended."""
    one = costs.seconds(ranks, job.gradient_bytes // job.buckets)
    forward, backward = computing * (1 - BACKWARD), computing * BACKWARD
    ended = 0.0
    for bucket in range(1, job.buckets + 1):
        ready = forward + backward * bucket / job.buckets
        ended = max(ready, ended) + one
    return ended


def rate(job: Job, costs: CostModel, way: str, ranks: int, batch_size: int) -> float:
    """Return the samples per second of all ranks."""
    samples = ranks * batch_size * (job.accumulation if way == "accumulation" else 1)
    return samples / step(job, costs, way, ranks, batch_size)


def smallest_batch(job: Job, costs: CostModel, ranks: int, efficiency: float) -> int:
    """Return the samples per rank from which `ranks` ranks have this efficiency.

    Efficiency is the rate divided by N times that of one rank with the same batch. An efficiency of
    1/N means as fast as one rank: from there on it pays to add ranks.
    """
    averaging = costs.seconds(ranks, job.gradient_bytes)
    needed = averaging * efficiency / (1 - efficiency)  # seconds of computation
    return max(1, int((needed - job.fixed) / job.per_sample) + 1)
