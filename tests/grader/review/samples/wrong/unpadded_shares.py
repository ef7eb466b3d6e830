"""Shares that differ in size: some ranks have one sample more."""

# expect: DDP006

from torch.utils.data import Sampler


class StridedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank):
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank

    def __iter__(self):
        indices = list(range(len(self.dataset)))
        return iter(indices[self.rank :: self.num_replicas])  # here

    def __len__(self):
        return len(range(self.rank, len(self.dataset), self.num_replicas))
