"""Phase 2: samplers, shards and microbatches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence, Sized

from torch import Tensor
from torch.utils.data import Sampler


class ResumableDistributedSampler(Sampler[int]):
    """Strided shares; the order of an epoch is that of the BLAKE2 digests of its indices."""

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if len(dataset) == 0:
            raise ValueError("the dataset has no samples")
        if num_replicas < 1:
            raise ValueError(f"num_replicas is {num_replicas}, must be 1 or more")
        if rank < 0 or rank > num_replicas - 1:
            raise ValueError(f"rank is {rank}, must be from 0 to {num_replicas - 1}")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int) -> None:
        self.start = self.start if epoch == self.epoch else 0
        self.epoch = epoch

    def resume(self, epoch: int, samples_seen: int) -> None:
        self.epoch = epoch
        self.start = samples_seen

    def _key(self, index: int) -> bytes:
        text = f"{self.seed}:{self.epoch}:{index}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def __iter__(self) -> Iterator[int]:
        indices = range(len(self.dataset))
        order = sorted(indices, key=self._key) if self.shuffle else list(indices)
        remaining = order[self.start :]
        self.start = 0
        if self.drop_last:
            remaining = remaining[: len(remaining) - len(remaining) % self.num_replicas]
        elif remaining:
            missing = -len(remaining) % self.num_replicas
            beginning = list(remaining)
            while missing > 0:
                remaining = remaining + beginning[:missing]
                missing -= len(beginning)
        return iter(remaining[self.rank :: self.num_replicas])

    def __len__(self) -> int:
        remaining = max(len(self.dataset) - self.start, 0)
        if not self.drop_last:
            remaining += self.num_replicas - 1
        return remaining // self.num_replicas


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Rank r's part of `range(num_samples)`: the first `num_samples % N` ranks get one more."""
    size, extra = divmod(num_samples, num_replicas)
    start = rank * size + min(rank, extra)
    return range(start, start + size + (rank < extra))


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """Walk along dim 0 with `narrow`, taking a fair part of what is left each time."""
    length = batch[0].shape[0]
    if num_microbatches < 1:
        raise ValueError("num_microbatches must be at least 1")
    if length < num_microbatches:
        raise ValueError(f"num_microbatches={num_microbatches}, but there are {length} samples only")
    start = 0
    result: list[tuple[Tensor, ...]] = []
    for parts_left in range(num_microbatches, 0, -1):
        size = -(-(length - start) // parts_left)
        result.append(tuple(t.narrow(0, start, size) for t in batch))
        start += size
    return result


def main() -> None:
    """Print each rank's share of 10 samples on 4 ranks, whole and resumed on 3 after 4 samples."""
    for rank in range(4):
        sampler = ResumableDistributedSampler(range(10), 4, rank, shuffle=False)
        print(f"rank {rank} of 4: {list(sampler)}")
    for rank in range(3):
        sampler = ResumableDistributedSampler(range(10), 3, rank, shuffle=False)
        sampler.resume(epoch=0, samples_seen=4)
        print(f"rank {rank} of 3, resumed after 4 samples: {list(sampler)}")


if __name__ == "__main__":
    main()
