"""Phase 2, first file: resumable shares, shares without padding, and parts of a batch.

N is the world size (`num_replicas`), r is this rank, M is the number of samples.
Read GUIDELINES.md, "Resumable shares" to "Microbatches". `gradsync check` shows your progress.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized

import torch
from torch.utils.data import Sampler

### BEGIN SOLUTION
# isort: split
import math

import numpy as np

### END SOLUTION


class ResumableDistributedSampler(Sampler[int]):
    """Yields the indices of one rank's strided share of a dataset; it can resume in mid-epoch.

    Rank r takes positions r, r+N, r+2N, ... of the epoch's order (0..M-1, or a permutation of it).
    The order is padded at its end with its own beginning, repeated as often as needed. With
    `drop_last` it is cut to a multiple of N instead. For M=10 and N=4 without shuffling the shares
    are `[0,4,8] [1,5,9] [2,6,0] [3,7,1]`.

    The permutation depends only on `(seed, epoch)`: it is the same on every rank, in every process,
    in every run and for every world size. It does not depend on the global random state, and does
    not change it. Epochs count from 0, and a new sampler is at epoch 0.

    Args:
        dataset: any object with a length, M.
        num_replicas: the world size N.
        rank: this rank, 0..N-1.
        shuffle: whether to permute the samples in each epoch.
        seed: the seed of the permutations, the same on every rank.
        drop_last: whether to drop the samples that do not fill a row of N, instead of padding.

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
        drop_last: bool = False,
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
        self.drop_last = drop_last
        self.epoch = 0
        self.samples_seen = 0
        ### END SOLUTION

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, counted from 0.

        After `resume` with the same epoch, the next pass is still the resumed one. With a different
        epoch, it is a complete epoch.
        """
        ### BEGIN SOLUTION
        if epoch != self.epoch:
            self.samples_seen = 0
        self.epoch = epoch
        ### END SOLUTION

    def resume(self, epoch: int, samples_seen: int) -> None:
        """Make the next pass yield the rest of `epoch`, after its first `samples_seen` positions.

        Positions refer to the global order of all M samples, before padding or cutting. The rest is
        divided among the current ranks; their number may have changed. Like a complete epoch, the
        rest is padded with its own beginning, or cut: with `drop_last`, M=10, N=3 and 4 samples
        seen, six are left and each rank gets two. The pass after that is a complete epoch again.
        """
        ### BEGIN SOLUTION
        self.epoch = epoch
        self.samples_seen = samples_seen
        ### END SOLUTION

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over this rank's indices of the next pass."""
        ### BEGIN SOLUTION
        rest = self._order()[self.samples_seen :]
        positions = range(self.rank, len(self) * self.num_replicas, self.num_replicas)
        self.samples_seen = 0
        return iter([rest[position % len(rest)] for position in positions])
        ### END SOLUTION

    def __len__(self) -> int:
        """Return the number of indices in the next pass, which is the same on every rank."""
        ### BEGIN SOLUTION
        left = max(0, len(self.dataset) - self.samples_seen)
        rows = left / self.num_replicas
        return math.floor(rows) if self.drop_last else math.ceil(rows)
        ### END SOLUTION

    ### BEGIN SOLUTION
    def _order(self) -> list[int]:
        """Return the epoch's order of all samples, before padding."""
        count = len(self.dataset)
        if not self.shuffle:
            return list(range(count))
        return np.random.default_rng([self.seed, self.epoch]).permutation(count).tolist()

    ### END SOLUTION


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Return this rank's contiguous share of `range(num_samples)`.

    The shares are disjoint and cover all samples. Their sizes differ by at most one, the larger
    ones first: 10 samples on 4 ranks give 3, 3, 2 and 2. A rank's share may be empty.
    """
    ### BEGIN SOLUTION
    size, larger = divmod(num_samples, num_replicas)
    start = rank * size + min(rank, larger)
    return range(start, start + size + (rank < larger))
    ### END SOLUTION


def split_microbatches(
    batch: Sequence[torch.Tensor], num_microbatches: int
) -> list[tuple[torch.Tensor, ...]]:
    """Split each tensor of a batch along dim 0 into parts, in order.

    The parts are views, not copies. Their sizes differ by at most one, the larger ones first.

    Raises:
        ValueError: if there would be more parts than samples, or fewer than one part.
    """
    ### BEGIN SOLUTION
    samples = len(batch[0])
    if not 1 <= num_microbatches <= samples:
        raise ValueError(
            f"num_microbatches must be in 1..{samples}, the size of the batch, "
            f"got {num_microbatches}"
        )
    parts = [shard_without_padding(samples, num_microbatches, i) for i in range(num_microbatches)]
    return [tuple(tensor[part.start : part.stop] for tensor in batch) for part in parts]
    ### END SOLUTION


def main() -> None:
    """Print the shares of 10 samples on 4 ranks, and on 3 ranks after resuming at 4 samples."""
    for rank in range(4):
        sampler = ResumableDistributedSampler(range(10), 4, rank, shuffle=False)
        print(f"rank {rank} of 4: {list(sampler)}")
    for rank in range(3):
        sampler = ResumableDistributedSampler(range(10), 3, rank, shuffle=False)
        sampler.resume(epoch=0, samples_seen=4)
        print(f"rank {rank} of 3, resumed after 4 samples: {list(sampler)}")


if __name__ == "__main__":
    main()
