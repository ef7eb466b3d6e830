"""numpy's legacy generator; slices between boundaries that are counted from the end."""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class _NextPass:
    epoch: int = 0
    begin: int = 0


class ResumableDistributedSampler(Sampler[int]):
    """Strided shares, with the legacy Mersenne Twister of numpy in an instance of its own."""

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
        self._check(len(dataset), num_replicas, rank)
        self.length = len(dataset)
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.next = _NextPass()

    @staticmethod
    def _check(length: int, num_replicas: int, rank: int) -> None:
        if num_replicas < 1:
            raise ValueError("`num_replicas` is below 1")
        if rank < 0:
            raise ValueError("`rank` is negative")
        if rank >= num_replicas:
            raise ValueError("`rank` is not below `num_replicas`")
        if length < 1:
            raise ValueError("`dataset` is empty")

    def set_epoch(self, epoch: int) -> None:
        if self.next.epoch != epoch:
            self.next = _NextPass(epoch)

    def resume(self, epoch: int, samples_seen: int) -> None:
        self.next = _NextPass(epoch, samples_seen)

    def __iter__(self) -> Iterator[int]:
        this, self.next = self.next, _NextPass(self.next.epoch)
        if self.shuffle:
            words = [part & 0xFFFFFFFF for number in (self.seed, this.epoch) for part in (number, number >> 32)]
            order = np.random.RandomState(words).permutation(self.length)
        else:
            order = np.arange(self.length)
        order = order[this.begin :]
        whole = len(order) // self.num_replicas * self.num_replicas
        mine = order[:whole][self.rank :: self.num_replicas]
        if not self.drop_last and whole < len(order):
            # The last row: what is over, then the beginning, and again the beginning, ...
            position = whole + self.rank
            mine = np.append(mine, order[position % len(order)])
        return iter(mine.tolist())

    def __len__(self) -> int:
        left = max(0, self.length - self.next.begin)
        return (left + (0 if self.drop_last else self.num_replicas - 1)) // self.num_replicas


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """Slices between boundaries that are counted from the end, rounded down."""
    n = len(batch[0])
    if num_microbatches not in range(1, n + 1):
        raise ValueError(f"num_microbatches has to be one of 1..{n}, got {num_microbatches}")
    cuts = [n - (n * (num_microbatches - k)) // num_microbatches for k in range(num_microbatches + 1)]
    sizes = sorted((b - a for a, b in zip(cuts, cuts[1:], strict=False)), reverse=True)
    views: list[tuple[Tensor, ...]] = []
    end = 0
    for size in sizes:
        begin, end = end, end + size
        views.append(tuple(torch.narrow(tensor, 0, begin, size) for tensor in batch))
    return views
