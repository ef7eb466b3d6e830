"""torch's DistributedSampler deals: first alone for the order, then over what is left of it."""

import torch
from torch.utils.data import DistributedSampler


class ResumableDistributedSampler(DistributedSampler):
    def __init__(self, dataset, num_replicas, rank, *, shuffle=True, seed=0, drop_last=False):
        if num_replicas < 1:
            raise ValueError("num_replicas must be positive")
        if rank not in range(num_replicas):
            raise ValueError("rank must be one of the replicas'")
        if len(dataset) < 1:
            raise ValueError("dataset must not be empty")
        super().__init__(
            dataset, num_replicas, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        self.start = 0

    def set_epoch(self, epoch):
        if epoch != self.epoch:
            self.start = 0
        super().set_epoch(epoch)

    def resume(self, epoch, samples_seen):
        self.set_epoch(epoch)
        self.start = samples_seen

    def _dealer(self):
        left = range(self.start, len(self.dataset))
        return DistributedSampler(
            left, self.num_replicas, self.rank, shuffle=False, drop_last=self.drop_last
        )

    def __iter__(self):
        if self.start == 0:
            return super().__iter__()
        alone = DistributedSampler(self.dataset, 1, 0, shuffle=self.shuffle, seed=self.seed)
        alone.set_epoch(self.epoch)
        left = list(alone)[self.start :]
        chosen = [left[position] for position in self._dealer()] if left else []
        self.start = 0
        return iter(chosen)

    def __len__(self):
        return len(self._dealer())


def split_microbatches(batch, num_microbatches):
    if num_microbatches < 1 or num_microbatches > batch[0].size(0):
        raise ValueError("cannot split like that")
    return list(zip(*(torch.tensor_split(tensor, num_microbatches) for tensor in batch)))
