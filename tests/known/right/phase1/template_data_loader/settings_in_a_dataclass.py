"""The sampler's settings are in a dataclass, whose types are looked up in the running module."""

import copy
import pickle
from dataclasses import dataclass, fields
from typing import ClassVar, get_type_hints


class Count(int):
    """A number that is at least 1."""


@dataclass
class Settings:
    smallest: ClassVar[int] = 1
    num_replicas: Count
    rank: int
    shuffle: bool
    seed: int
    epoch: int = 0

    def checked(self):
        hints = get_type_hints(Settings)
        for field in fields(self):
            if hints[field.name] is Count and getattr(self, field.name) < self.smallest:
                raise ValueError(f"{field.name} must be at least {self.smallest}")
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank must be in 0..{self.num_replicas - 1}")
        return pickle.loads(pickle.dumps(copy.copy(self)))


class PaddedDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if len(dataset) == 0:
            raise ValueError("the dataset is empty")
        self.samples = len(dataset)
        self.settings = Settings(num_replicas, rank, shuffle, seed).checked()

    def set_epoch(self, epoch):
        self.settings.epoch = epoch

    def __len__(self):
        return -(-self.samples // self.settings.num_replicas)

    def __iter__(self):
        own = self.settings
        generator = torch.Generator().manual_seed(own.seed * 10_007 + own.epoch)
        order = torch.arange(self.samples)
        if own.shuffle:
            order = torch.randperm(self.samples, generator=generator)
        begin = own.rank * len(self)
        return iter([int(order[i % self.samples]) for i in range(begin, begin + len(self))])
