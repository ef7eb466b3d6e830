"""Python's own generator, and modulo arithmetic one index at a time."""

import random


class PaddedDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        self.count = len(dataset)
        for name, wrong in (
            ("num_replicas", num_replicas < 1),
            ("rank", not 0 <= rank < num_replicas),
            ("dataset", self.count == 0),
        ):
            if wrong:
                raise ValueError(f"bad {name}")
        self.each = (self.count + num_replicas - 1) // num_replicas
        self.first = self.each * rank
        self.shuffle = shuffle
        self.seed = seed
        self.set_epoch(0)

    def set_epoch(self, epoch):
        self.order = list(range(self.count))
        if self.shuffle:
            random.Random(f"{self.seed}/{epoch}").shuffle(self.order)

    def __iter__(self):
        for k in range(self.each):
            yield self.order[(self.first + k) % self.count]

    def __len__(self):
        return self.each
