"""The rest is worked out at once and kept until it was gone through; torch's own generator."""

import torch


class ResumableDistributedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0, drop_last=False):
        if num_replicas < 1:
            raise ValueError("num_replicas < 1")
        if rank < 0 or rank >= num_replicas:
            raise ValueError("rank out of range")
        if not len(dataset):
            raise ValueError("dataset has no samples")
        self.n, self.num_replicas, self.rank = len(dataset), num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch, self.rest = 0, None

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.rest = None
        self.epoch = epoch

    def resume(self, epoch, samples_seen):
        self.epoch = epoch
        self.rest = self.permutation()[samples_seen:]

    def permutation(self):
        if not self.shuffle:
            return list(range(self.n))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed * 100_003 + self.epoch)
            return torch.randperm(self.n).tolist()

    def __iter__(self):
        indices = self.permutation() if self.rest is None else self.rest
        length = len(self)
        self.rest = None
        total = length * self.num_replicas
        while 0 < len(indices) < total:
            indices = indices + indices
        return iter(indices[self.rank : total : self.num_replicas])

    def __len__(self):
        left = self.n if self.rest is None else len(self.rest)
        if self.drop_last:
            return left // self.num_replicas
        return math.ceil(left / self.num_replicas)


def split_microbatches(batch, num_microbatches):
    samples = len(batch[0])
    if num_microbatches < 1 or samples < num_microbatches:
        raise ValueError("that many parts there are not")
    bounds = [0]
    for i in range(num_microbatches):
        bounds.append(bounds[-1] + samples // num_microbatches + (i < samples % num_microbatches))
    return [
        tuple(tensor[slice(*ends)] for tensor in batch) for ends in zip(bounds[:-1], bounds[1:])
    ]
