"""Phase 1: shares. The deck is shuffled by sorting on a keyed hash, no generator at all."""

from collections import deque
from hashlib import blake2b
from typing import Iterator


class PaddedDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0):
        M = len(dataset)
        if num_replicas <= 0:
            raise ValueError(f"num_replicas: {num_replicas}")
        if rank not in range(num_replicas):
            raise ValueError(f"rank: {rank}")
        if M == 0:
            raise ValueError("dataset: empty")
        self.M, self.N, self.r = M, num_replicas, rank
        self.shuffle, self.seed = shuffle, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return (self.M - 1) // self.N + 1

    def _lot(self, index: int) -> bytes:
        """The lot that a sample draws in this epoch."""
        text = f"seed={self.seed};epoch={self.epoch};sample={index}"
        return blake2b(text.encode("ascii"), digest_size=12).digest()

    def __iter__(self) -> Iterator[int]:
        ring = deque(sorted(range(self.M), key=self._lot) if self.shuffle else range(self.M))
        size = len(self)
        ring.rotate(-(self.r * size) % self.M)  # turn the ring until our chunk is in front
        chunk = []
        for _ in range(size):
            chunk.append(ring[0])
            ring.rotate(-1)
        return iter(chunk)
