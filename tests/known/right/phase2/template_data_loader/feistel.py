"""An order that is computed index by index, so no rank ever holds it as a whole."""

import hashlib
from collections import deque


class _Feistel:
    """A permutation of 0..size-1 that is computed, not stored: six rounds, and walking the cycle."""

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        self.half = max(2, ((size - 1).bit_length() + 1) // 2)
        self.mask = (1 << self.half) - 1
        self.keys = [f"{seed},{epoch},{turn},".encode() for turn in range(6)]

    def _once(self, value: int) -> int:
        left, right = value >> self.half, value & self.mask
        for key in self.keys:
            digest = hashlib.blake2b(key + right.to_bytes(8, "little"), digest_size=8).digest()
            mixed = int.from_bytes(digest, "little")
            left, right = right, left ^ (mixed & self.mask)
        return left << self.half | right

    def __getitem__(self, position: int) -> int:
        value = self._once(position)
        while value >= self.size:
            value = self._once(value)
        return value


class ResumableDistributedSampler(Sampler[int]):
    """Strided shares of an order that no rank ever holds as a whole."""

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas < 1:
            raise ValueError(f"num_replicas={num_replicas}")
        if not -1 < rank < num_replicas:
            raise ValueError(f"rank={rank}, with num_replicas={num_replicas}")
        if len(dataset) == 0:
            raise ValueError("dataset: len() is 0")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._resumed: deque[int] = deque(maxlen=1)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self._resumed.clear()
        self.epoch = epoch

    def resume(self, epoch: int, samples_seen: int) -> None:
        self.epoch = epoch
        self._resumed.append(samples_seen)

    def _left(self) -> range:
        """The positions of the global order that the next pass is about."""
        return range(len(self.dataset))[self._resumed[0] if self._resumed else 0 :]

    def __iter__(self) -> Iterator[int]:
        left, count = self._left(), len(self)
        self._resumed.clear()
        order = range(len(self.dataset))
        if self.shuffle:
            order = _Feistel(len(self.dataset), self.seed, self.epoch)
        return self._deal(order, left, count)

    def _deal(self, order: Sequence[int], left: range, count: int) -> Iterator[int]:
        for row in range(count):
            yield order[left[(row * self.num_replicas + self.rank) % len(left)]]

    def __len__(self) -> int:
        left = len(self._left())
        return left // self.num_replicas if self.drop_last else -(left // -self.num_replicas)


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """Split each tensor with `tensor_split`, which makes views, larger parts first."""
    samples = min(len(tensor) for tensor in batch)
    if num_microbatches < 1 or num_microbatches > samples:
        raise ValueError(f"num_microbatches must lie in 1..{samples}, not {num_microbatches}")
    return list(zip(*(tensor.tensor_split(num_microbatches) for tensor in batch), strict=True))
