"""The alpha-beta model of all-reduce: what a message costs, and how many an algorithm sends.

A message of n bytes takes alpha + n * beta seconds. The formulas are those of R. Thakur,
R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH",
IJHPCA 19(1), 2005; P. Patarasuk and X. Yuan, JPDC 69(2), 2009, prove that no algorithm sends fewer
bytes than the ring. The seconds for adding up numbers (their gamma) grow like the bytes sent, so
they are part of beta here.

Three terms are ours, for ranks on one machine. If there are more ranks than cores, a rank that a
message wakes waits for the other ranks on its core, and copying and adding bytes takes longer. All
ranks wait for those on the fullest core. Buffers that do not fit into the caches cost more for each
byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

Algorithm = Literal["ring", "tree"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclass(frozen=True, slots=True)
class Network:
    """What collectives cost between ranks that are all connected alike."""

    algorithm: Algorithm
    alpha: float  # seconds: the latency of a message
    beta: float  # seconds for a byte of a message
    contention: float = 0.0  # exponent: a byte costs (ranks on each core) ** contention times beta
    cores: int | None = None  # for all ranks together; None: each rank has its own
    cache: int | None = None  # bytes of a buffer from which on a byte costs `beta_beyond`
    beta_beyond: float = 0.0  # seconds for a byte
    wait: float = 0.0  # seconds that a message waits for each other rank on the fullest core

    def all_reduce(self, size: float, ranks: int) -> float:
        """Return the seconds for `size` bytes on each of `ranks` ranks."""
        return 2 * self._half(size, ranks)

    def reduce_scatter(self, size: float, ranks: int) -> float:
        """Return the seconds if each rank gives `size` bytes and gets its share of the sum."""
        return self._half(size, ranks)

    def all_gather(self, size: float, ranks: int) -> float:
        """Return the seconds if each rank gives its share and gets `size` bytes."""
        return self._half(size, ranks)

    def on_own_cores(self) -> Network:
        """Return the same network between ranks that do not share cores."""
        return replace(self, contention=0.0, wait=0.0, cores=None)

    def _half(self, size: float, ranks: int) -> float:
        """Return the seconds for either half of an all-reduce, which cost the same."""
        near = size if self.cache is None else min(size, self.cache)
        sending = (ranks - 1) / ranks * (near * self.beta + (size - near) * self.beta_beyond)
        on_core = crowding(ranks, self.cores)
        slower: float = on_core**self.contention
        latency = self.alpha + (math.ceil(on_core) - 1) * self.wait
        return messages(self.algorithm, ranks) * latency + slower * sending


def messages(algorithm: Algorithm, ranks: int) -> int:
    """Return how many messages a rank sends one after the other in half an all-reduce.

    "ring": to the next rank, `ranks - 1` times. "tree": recursive halving, in which the distance
    and the size of a message are halved each time; the bytes are the same.
    """
    return ranks - 1 if algorithm == "ring" else (ranks - 1).bit_length()


def crowding(ranks: int, cores: int | None) -> float:
    """Return the number of ranks on each core, at least 1."""
    return 1.0 if cores is None else max(1.0, ranks / cores)
