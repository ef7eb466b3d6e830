"""The time of a training step on N ranks, for four ways to share the work, and when it pays off.

Each rank has its own core or GPU and its own batch. Gradients become ready at a constant rate
during backward, from the last layer to the first, and are sent in buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradsync.scale.costs import Compute, Network

MIB = 2**20
BUCKET = 25 * MIB  # bytes, as in torch's DistributedDataParallel
MICROBATCHES = 4  # for each update, with accumulation
GOOD = 0.8  # of the ideal speed, which is N times the speed of one rank
LARGEST = 2**24  # samples: larger batches are not searched


@dataclass(frozen=True, slots=True)
class Workload:
    """A model to train: the seconds for its compute, and the size of its gradients."""

    compute: Compute
    gradients: int  # bytes of all gradients
    bucket: int = BUCKET  # bytes

    def buckets(self) -> list[int]:
        """Return the bytes of each bucket, in the order in which backward fills them."""
        whole, rest = divmod(self.gradients, self.bucket)
        return [self.bucket] * whole + ([rest] if rest else [])


@dataclass(frozen=True, slots=True)
class Step:
    """One update of the model's parameters."""

    seconds: float
    batches: int = 1  # processed by each rank for this update
    communication: float = 0.0  # seconds in which a collective was in progress
    hidden: float = 0.0  # the part of `communication` during which the rank computed

    @property
    def seconds_for_batch(self) -> float:
        return self.seconds / self.batches


Strategy = Callable[[Workload, Network, float, int], Step]


def plain(workload: Workload, network: Network, batch: float, ranks: int) -> Step:
    """Send all buckets after backward, one after the other."""
    sent = _all_reduces(workload, network, ranks)
    return Step(workload.compute.step(batch) + sent, communication=sent)


def overlapped(workload: Workload, network: Network, batch: float, ranks: int) -> Step:
    """Send each bucket as soon as backward has filled it, while backward continues."""
    compute = workload.compute
    backward = compute.backward(batch)
    finished, filled, sending = 0.0, 0, 0.0  # seconds since backward began, bytes, seconds
    for size in workload.buckets():
        filled += size
        ready = backward * filled / workload.gradients
        seconds = network.all_reduce(size, ranks)
        finished = max(ready, finished) + seconds
        sending += seconds
    exposed = max(0.0, finished - backward)
    return Step(
        compute.step(batch) + exposed, communication=sending, hidden=max(0.0, sending - exposed)
    )


def accumulated(workload: Workload, network: Network, batch: float, ranks: int) -> Step:
    """Process `MICROBATCHES` batches for each update, and send gradients once, at the end."""
    compute = workload.compute
    sent = _all_reduces(workload, network, ranks)
    seconds = MICROBATCHES * compute.passes(batch) + compute.update + sent
    return Step(seconds, MICROBATCHES, sent)


def sharded(workload: Workload, network: Network, batch: float, ranks: int) -> Step:
    """Reduce-scatter the gradients, update each rank's share, all-gather the parameters."""
    compute = workload.compute
    sent = sum(
        network.reduce_scatter(size, ranks) + network.all_gather(size, ranks)
        for size in workload.buckets()
    )
    seconds = compute.passes(batch) + compute.update / ranks + sent
    return Step(seconds, communication=sent)


STRATEGIES: Mapping[str, Strategy] = {
    "data parallel": plain,
    "overlap by bucket": overlapped,
    f"accumulation of {MICROBATCHES}": accumulated,
    "sharded optimizer": sharded,
}


def speedup(
    strategy: Strategy, workload: Workload, network: Network, batch: float, ranks: int
) -> float:
    """Return the samples per second, divided by one rank's with the same batch."""
    step = strategy(workload, network, batch, ranks)
    return ranks * workload.compute.step(batch) / step.seconds_for_batch


@dataclass(frozen=True, slots=True)
class PayingBatches:
    """The smallest batches on each rank with which several ranks are faster; None: no batch."""

    ranks: int
    faster: int | None  # with more samples per second than one rank
    efficient: int | None  # with at least `GOOD` of the ideal speed


def paying_batches(
    strategy: Strategy, workload: Workload, network: Network, ranks: int
) -> PayingBatches:
    """Return the smallest batches with which `ranks` ranks are faster than one.

    Communication takes the same time for a batch of any size, and compute grows with the batch.
    """

    def smallest(least: float) -> int | None:
        """Bisect: with a larger batch, the same communication is a smaller part of the step."""
        low, high = 0, LARGEST  # `low` is too small, `high` is not
        if speedup(strategy, workload, network, high, ranks) < least:
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if speedup(strategy, workload, network, middle, ranks) < least:
                low = middle
            else:
                high = middle
        return high

    barely = 1.0 + 1e-9
    return PayingBatches(ranks, smallest(barely), smallest(GOOD * ranks))


def _all_reduces(workload: Workload, network: Network, ranks: int) -> float:
    return sum(network.all_reduce(size, ranks) for size in workload.buckets())
