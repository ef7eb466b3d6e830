"""A private torch generator, and one stride through the epoch's order."""

import math

import torch


class ResumableDistributedSampler(Sampler[int]):
    """Strided share of an epoch's order. The order comes from a private torch generator."""

    def __init__(self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        if num_replicas < 1:
            raise ValueError(f"num_replicas must be at least 1, not {num_replicas}")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must lie in 0..{num_replicas - 1}, not {rank}")
        if len(dataset) == 0:
            raise ValueError("dataset is empty")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch, self._seen = 0, 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self._seen = 0
        self.epoch = epoch

    def resume(self, epoch: int, samples_seen: int) -> None:
        if samples_seen < 0:
            raise ValueError(f"samples_seen must not be negative, not {samples_seen}")
        self.epoch, self._seen = epoch, samples_seen

    def _order(self) -> list[int]:
        total = len(self.dataset)
        if not self.shuffle:
            return list(range(total))
        generator = torch.Generator()
        # A product with odd constants keeps (seed 0, epoch 1) and (seed 1, epoch 0) apart.
        generator.manual_seed((self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xC2B2AE3D27D4EB4F) % 2**63)
        return torch.randperm(total, generator=generator).tolist()

    def __iter__(self) -> Iterator[int]:
        left = self._order()[self._seen :]
        wanted = len(self) * self.num_replicas
        self._seen = 0
        if len(left) < wanted:
            left = (left * math.ceil(wanted / len(left)))[:wanted]
        return iter(left[self.rank : wanted : self.num_replicas])

    def __len__(self) -> int:
        left = max(0, len(self.dataset) - self._seen)
        return left // self.num_replicas if self.drop_last else math.ceil(left / self.num_replicas)
