"""A generator that hands out one index at a time and forgets its position when it ends."""

import itertools
import random


class ResumableDistributedSampler(Sampler):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0, drop_last=False):
        self.count = len(dataset)
        for name, wrong in (
            ("num_replicas", num_replicas < 1),
            ("rank", not 0 <= rank < num_replicas),
            ("dataset", self.count == 0),
        ):
            if wrong:
                raise ValueError(f"bad {name}")
        self.n, self.rank, self.shuffle, self.seed, self.drop = num_replicas, rank, shuffle, seed, drop_last
        self.epoch, self.position = 0, None

    def set_epoch(self, epoch):
        self.epoch = epoch
        if self.position is not None and self.position[0] != epoch:
            self.position = None

    def resume(self, epoch, samples_seen):
        self.epoch, self.position = epoch, (epoch, samples_seen)

    @property
    def start(self):
        return self.position[1] if self.position else 0

    def __iter__(self):
        order = list(range(self.count))
        if self.shuffle:
            random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        left = len(order) - self.start
        cards = itertools.cycle(order[self.start :])
        for _ in range(left // self.n if self.drop else (left + self.n - 1) // self.n):
            hand = [next(cards) for _ in range(self.n)]
            yield hand[self.rank]
        self.position = None

    def __len__(self):
        left = self.count - self.start
        return left // self.n + (not self.drop and left % self.n > 0)


def shard_without_padding(num_samples, num_replicas, rank):
    sizes = [0] * num_replicas
    for sample in range(num_samples):
        sizes[sample % num_replicas] += 1
    return range(sum(sizes[:rank]), sum(sizes[: rank + 1]))


def split_microbatches(batch, num_microbatches):
    if num_microbatches not in range(1, len(batch[0]) + 1):
        raise ValueError(num_microbatches)
    sizes = [len(shard_without_padding(len(batch[0]), num_microbatches, i)) for i in range(num_microbatches)]
    pieces = [tensor.split(sizes) for tensor in batch]
    return [tuple(piece[i] for piece in pieces) for i in range(num_microbatches)]
