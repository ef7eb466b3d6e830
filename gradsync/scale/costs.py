"""The cost of a training step's parts: compute on one rank, and all-reduce between ranks.

All-reduce has the alpha-beta model: a message of n bytes takes alpha + n * beta seconds. The
formulas are from R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication
Operations in MPICH", IJHPCA 19(1), 2005. The time for adding numbers (gamma in that paper) is
proportional to the number of bytes, so it is part of beta here. P. Patarasuk and X. Yuan, JPDC
69(2), 2009, prove that no algorithm sends fewer bytes than the ring.

Four terms are added here, for ranks on one machine. If there are more ranks than cores, a rank
that receives a message waits for the other ranks on its core, and copying and adding bytes takes
longer. All ranks wait for the ranks on the fullest core. If a buffer does not fit into the caches,
each further byte costs more. gloo reduces everything on all ranks before it scatters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

Algorithm = Literal["ring", "tree"]
FLOAT = 4  # bytes of a number
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclass(frozen=True, slots=True)
class Compute:
    """Seconds for forward, backward and the optimizer's update, on one core or GPU."""

    fixed: float  # seconds for each batch, however small
    per_sample: float  # seconds for each sample
    update: float = 0.0  # seconds for the optimizer's step
    backward_share: float = 2 / 3  # of forward and backward

    def passes(self, batch: float) -> float:
        """Return the seconds for forward and backward of `batch` samples."""
        return self.fixed + self.per_sample * batch

    def backward(self, batch: float) -> float:
        """Return the seconds for backward of `batch` samples."""
        return self.backward_share * self.passes(batch)

    def step(self, batch: float) -> float:
        """Return the seconds for a complete step of `batch` samples on one rank."""
        return self.passes(batch) + self.update


@dataclass(frozen=True, slots=True)
class Network:
    """The cost of collectives between ranks that are all connected in the same way."""

    algorithm: Algorithm
    alpha: float  # seconds: the latency of a message
    beta: float  # seconds for a byte of a message
    contention: float = 0.0  # exponent: a byte costs (ranks on each core) ** contention times beta
    cores: int | None = None  # for all ranks together; None: each rank has its own
    cache: int | None = None  # bytes of a buffer; each further byte costs `beta_beyond`
    beta_beyond: float = 0.0  # seconds for a byte
    wait: float = 0.0  # seconds that a message waits for each other rank on the fullest core
    scatters_whole: bool = False  # a reduce-scatter takes as long as an all-reduce

    def all_reduce(self, size: float, ranks: int) -> float:
        """Return the seconds for `size` bytes on each of `ranks` ranks."""
        return 2 * self._half(size, ranks)

    def reduce_scatter(self, size: float, ranks: int) -> float:
        """Return the seconds if each rank sends `size` bytes and gets its share of the sum."""
        return (1 + self.scatters_whole) * self._half(size, ranks)

    def all_gather(self, size: float, ranks: int) -> float:
        """Return the seconds if each rank sends its share and gets `size` bytes."""
        return self._half(size, ranks)

    def on_own_cores(self) -> Network:
        """Return the same network between ranks that do not share cores."""
        return replace(self, contention=0.0, wait=0.0, cores=None)

    def exchange(self, size: float, ranks: int) -> float:
        """Return the seconds if each rank sends `size` bytes to a neighbour and gets as many."""
        return self._latency(ranks) + self._bytes(size, 1.0, ranks)

    def _half(self, size: float, ranks: int) -> float:
        """Return the seconds for one half of an all-reduce; both halves take the same time."""
        count = messages(self.algorithm, ranks)
        return count * self._latency(ranks) + self._bytes(size, (ranks - 1) / ranks, ranks)

    def _latency(self, ranks: int) -> float:
        """Return the seconds for a message without bytes."""
        return self.alpha + (math.ceil(crowding(ranks, self.cores)) - 1) * self.wait

    def _bytes(self, size: float, part: float, ranks: int) -> float:
        """Return the seconds for sending a part of a buffer of `size` bytes."""
        near = size if self.cache is None else min(size, self.cache)
        slower: float = crowding(ranks, self.cores) ** self.contention
        return slower * part * (near * self.beta + (size - near) * self.beta_beyond)


def messages(algorithm: Algorithm, ranks: int) -> int:
    """Return the number of messages that a rank sends, in sequence, in half an all-reduce.

    "ring": each rank sends to the next rank, `ranks - 1` times. "tree": recursive halving; the
    distance and the size of a message are halved each time. Both send the same number of bytes.
    """
    return ranks - 1 if algorithm == "ring" else (ranks - 1).bit_length()


def crowding(ranks: int, cores: int | None) -> float:
    """Return the number of ranks on each core, at least 1."""
    return 1.0 if cores is None else max(1.0, ranks / cores)
