"""A sampler that stores its rank and gives every rank the same samples."""

# expect: DDP004

import torch
from torch.utils.data import Sampler


class PaddedSampler(Sampler[int]):
    def __init__(self, dataset, num_replicas, rank, shuffle=True, seed=0):
        if rank >= num_replicas:
            raise ValueError(f"rank {rank}")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.samples = (len(dataset) + num_replicas - 1) // num_replicas

    def __iter__(self):  # here
        generator = torch.Generator().manual_seed(self.seed)
        indices = torch.randperm(len(self.dataset), generator=generator).tolist()
        return iter(indices[: self.samples])

    def __len__(self):
        return self.samples
