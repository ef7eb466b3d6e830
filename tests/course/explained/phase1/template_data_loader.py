"""A sampler that has the right lines of `phase1/codes.toml`."""

import random

from torch.utils.data import Sampler


class PaddedDistributedSampler(Sampler):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0):
        if num_replicas < 1:
            raise ValueError(f"num_replicas is {num_replicas}")
        if rank not in range(num_replicas):
            raise ValueError(f"rank {rank} of {num_replicas}")
        self.rank = rank
        if len(dataset) == 0:
            raise ValueError("dataset is empty")
        self.dataset, self.num_replicas = dataset, num_replicas
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0
        self.share = -(-len(dataset) // num_replicas)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = list(range(len(self.dataset)))
        if self.shuffle:
            rng = random.Random(f"{self.seed} {self.epoch}")
            rng.shuffle(order)
        total = self.share * self.num_replicas
        padded = [order[i % len(order)] for i in range(total)]
        first = self.rank * self.share
        return iter(padded[first : first + self.share])

    def __len__(self):
        return self.share
