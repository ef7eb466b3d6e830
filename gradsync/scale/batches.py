"""Find the smallest batch with which more ranks are faster.

Communication takes the same time for a batch of any size, and compute grows with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradsync.scale.network import Network
from gradsync.scale.strategies import Strategy, Workload, speedup

GOOD = 0.8  # of the ideal speed, which is N times the speed of one rank
LARGEST = 2**24  # samples: larger batches are not searched


@dataclass(frozen=True, slots=True)
class PayingBatches:
    """The smallest batches on each rank with which several ranks are faster; None: no batch."""

    ranks: int
    faster: int | None  # with more samples per second than one rank
    efficient: int | None  # with at least `GOOD` of the ideal speed


def paying_batches(
    strategy: Strategy, workload: Workload, network: Network, ranks: int
) -> PayingBatches:
    """Return the smallest batches with which `ranks` ranks are faster than one."""

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
