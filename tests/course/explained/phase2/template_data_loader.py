"""Shares and microbatches that have the right lines of `phase2/codes.toml`."""

import math
import random

from torch.utils.data import Sampler


class ResumableDistributedSampler(Sampler):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0, drop_last=False):
        if num_replicas < 1 or rank not in range(num_replicas) or len(dataset) == 0:
            raise ValueError(f"rank {rank}, num_replicas {num_replicas}, dataset of {len(dataset)}")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = self.seen = 0

    def set_epoch(self, epoch):
        if self.epoch != epoch:
            self.epoch, self.seen = epoch, 0

    def resume(self, epoch, samples_seen):
        self.epoch, self.seen = epoch, samples_seen

    def __iter__(self):
        total = len(self) * self.num_replicas
        order = list(range(len(self.dataset)))
        if self.shuffle:
            rng = random.Random(f"{self.seed} {self.epoch}")
            rng.shuffle(order)
        rest = order[self.seen :]
        self.seen = 0
        padded = [rest[i % len(rest)] for i in range(total)]
        return iter(padded[self.rank :: self.num_replicas])

    def __len__(self):
        left = max(0, len(self.dataset) - self.seen)
        return (math.floor if self.drop_last else math.ceil)(left / self.num_replicas)


def shard_without_padding(num_samples, num_replicas, rank):
    size, longer = divmod(num_samples, num_replicas)
    first = rank * size + min(rank, longer)
    return range(first, first + size + (rank < longer))


def split_microbatches(batch, num_microbatches):
    samples = len(batch[0])
    if not 0 < num_microbatches <= samples:
        raise ValueError(f"{num_microbatches} microbatches")
    shards = [shard_without_padding(samples, num_microbatches, i) for i in range(num_microbatches)]
    parts = [slice(shard.start, shard.stop) for shard in shards]
    return [tuple(t[part] for t in batch) for part in parts]
