"""numpy's Philox, keyed by seed and epoch; each rank in turn takes its fair part of the rest."""

import math

import numpy as np


class ResumableDistributedSampler(Sampler[int]):
    """Strided shares with numpy's counter-based Philox; keyed by seed and epoch."""

    def __init__(self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False) -> None:
        if len(dataset) <= 0:
            raise ValueError("dataset: must have samples")
        if num_replicas < 1:
            raise ValueError("num_replicas: must be >= 1")
        if not 0 <= rank < num_replicas:
            raise ValueError("rank: must be >= 0 and < num_replicas")
        self.data_source = dataset
        self.world, self.rank = num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._offset_of_next_pass = 0

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self._offset_of_next_pass = 0

    def resume(self, epoch: int, samples_seen: int) -> None:
        self.epoch = epoch
        self._offset_of_next_pass = max(0, min(samples_seen, len(self.data_source)))

    def __iter__(self) -> Iterator[int]:
        size = len(self.data_source)
        order = np.arange(size)
        if self.shuffle:
            key = np.array([self.seed % 2**64, self.epoch % 2**64], dtype=np.uint64)
            np.random.Generator(np.random.Philox(key=key)).shuffle(order)
        order = order[self._offset_of_next_pass :]
        self._offset_of_next_pass = 0
        over = order.size % self.world
        if over and self.drop_last:
            order = order[:-over]
        elif over:
            order = np.pad(order, (0, self.world - over), mode="wrap")
        return map(int, order[self.rank :: self.world])

    def __len__(self) -> int:
        left = len(self.data_source) - self._offset_of_next_pass
        if self.drop_last:
            return left // self.world
        return len(range(0, left, self.world))


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Each rank in turn takes its fair part of what is left, rounded up."""
    start, stop = 0, 0
    for before in range(rank + 1):
        start = stop
        stop = start + math.ceil((num_samples - start) / (num_replicas - before))
    return range(start, stop)


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """Two uses of `Tensor.split` with a single size: one for the large parts, one for the small."""
    tensors = tuple(batch)
    rows = {tensor.shape[0] for tensor in tensors}
    if len(rows) != 1:
        raise ValueError(f"the tensors of a batch differ in length: {sorted(rows)}")
    (count,) = rows
    if num_microbatches < 1:
        raise ValueError(f"num_microbatches: at least one part, not {num_microbatches}")
    if num_microbatches > count:
        raise ValueError(f"num_microbatches: {num_microbatches} parts of {count} samples")
    small = count // num_microbatches
    border = (count % num_microbatches) * (small + 1)

    def pieces(tensor: Tensor) -> list[Tensor]:
        large = tensor[:border].split(small + 1) if border else ()
        return [*large, *tensor[border:].split(small)]

    return list(zip(*map(pieces, tensors), strict=True))
