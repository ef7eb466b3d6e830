"""Phase 1, first file: give each rank its share of the data.

N is the world size (`num_replicas`), r is this rank, M is the number of samples.
Read GUIDELINES.md, "Data distribution" and "Data loaders". `gradsync check` shows your progress.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

### BEGIN SOLUTION
# isort: split
import numpy as np

### END SOLUTION


class PaddedDistributedSampler(Sampler[int]):
    """Yields the indices of one rank's share of a dataset: `ceil(M/N)` indices on every rank.

    The epoch's order (0..M-1, or a permutation of it) is padded at its end with its own beginning,
    repeated as often as needed. Rank r takes the r-th contiguous chunk. For M=10 and N=4 without
    shuffling the shares are `[0,1,2] [3,4,5] [6,7,8] [9,0,1]`.

    The permutation depends only on `(seed, epoch)`: it is the same on every rank, in every process
    and in every run. It does not depend on the global random state, and does not change it. Epochs
    count from 0, and a new sampler is at epoch 0.

    As a program, this file prints each rank's share of 10 samples on 4 ranks, and whether the
    shares are right.

    Args:
        dataset: any object with a length, M.
        num_replicas: the world size N.
        rank: this rank, 0..N-1.
        shuffle: whether to permute the samples in each epoch.
        seed: the seed of the permutations, the same on every rank.

    Raises:
        ValueError: if `num_replicas < 1`, if `rank` is outside 0..N-1, or if `dataset` is empty.
            The message names the argument.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        ### BEGIN SOLUTION
        if num_replicas < 1:
            raise ValueError(f"num_replicas must be at least 1, got {num_replicas}")
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank must be in 0..{num_replicas - 1}, got {rank}")
        if len(dataset) == 0:
            raise ValueError("dataset must have at least one sample")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        ### END SOLUTION

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, counted from 0."""
        ### BEGIN SOLUTION
        self.epoch = epoch
        ### END SOLUTION

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over this rank's indices of the current epoch."""
        ### BEGIN SOLUTION
        order = self._order()
        share = len(self)
        positions = range(self.rank * share, (self.rank + 1) * share)
        return iter([order[position % len(order)] for position in positions])
        ### END SOLUTION

    def __len__(self) -> int:
        """Return the number of indices of each rank: `ceil(M/N)`."""
        ### BEGIN SOLUTION
        return math.ceil(len(self.dataset) / self.num_replicas)
        ### END SOLUTION

    ### BEGIN SOLUTION
    def _order(self) -> list[int]:
        """Return the epoch's order of all samples, before padding."""
        count = len(self.dataset)
        if not self.shuffle:
            return list(range(count))
        return np.random.default_rng([self.seed, self.epoch]).permutation(count).tolist()

    ### END SOLUTION


def create_dataloaders(
    train_dataset: Dataset,
    val_dataset: Dataset,
    batch_size: int,
    *,
    world_size: int = 1,
    rank: int = 0,
    seed: int = 0,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> tuple[DataLoader, DataLoader]:
    """Return this rank's `(train_loader, val_loader)`.

    With one rank both are plain loaders: the train loader shuffles (the same order for the same
    seed), the val loader keeps the dataset's order. With several ranks each loader uses a
    `PaddedDistributedSampler`, which shuffles for training only. No sample is dropped. The function
    also works before a process group exists.

    Args:
        train_dataset: the samples to train on.
        val_dataset: the samples to evaluate on.
        batch_size: the number of samples in one rank's batch; the global batch is N times as large.
        world_size: the world size N.
        rank: this rank.
        seed: the seed of the shuffling.
        num_workers: the number of processes that load data in advance, on each rank.
        pin_memory: whether to load into page-locked memory, from which copies to a GPU are faster.
    """
    ### BEGIN SOLUTION
    common = {"batch_size": batch_size, "num_workers": num_workers, "pin_memory": pin_memory}
    if world_size == 1:
        generator = torch.Generator().manual_seed(seed)
        train = DataLoader(train_dataset, shuffle=True, generator=generator, **common)
        return train, DataLoader(val_dataset, shuffle=False, **common)
    train_share = PaddedDistributedSampler(train_dataset, world_size, rank, seed=seed)
    val_share = PaddedDistributedSampler(val_dataset, world_size, rank, shuffle=False)
    return (
        DataLoader(train_dataset, sampler=train_share, **common),
        DataLoader(val_dataset, sampler=val_share, **common),
    )
    ### END SOLUTION


def main() -> None:
    """Print each rank's share of 10 samples on 4 ranks, and check the shares."""
    num_samples, num_replicas = 10, 4
    shares = [
        list(PaddedDistributedSampler(range(num_samples), num_replicas, rank, shuffle=False))
        for rank in range(num_replicas)
    ]
    for rank, share in enumerate(shares):
        print(f"rank {rank}: {share}")

    together = [index for share in shares for index in share]
    padding = math.ceil(num_samples / num_replicas) * num_replicas - num_samples
    repeats = len(together) - len(set(together))
    equal = len({len(share) for share in shares}) == 1
    print(f"equal shares: {'yes' if equal else 'NO'}")
    print(f"all samples covered: {'yes' if set(together) == set(range(num_samples)) else 'NO'}")
    print(f"overlap only in the padding: {'yes' if repeats == padding else 'NO'}")


if __name__ == "__main__":
    main()
