"""numpy version: an order is a table with a column for each rank, and sizes have a running sum."""

import numpy as np


class ResumableDistributedSampler(Sampler[int]):
    """numpy version: a row of N per step, this rank owns a column."""

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
        size = len(dataset)
        if num_replicas <= 0:
            raise ValueError("num_replicas: need at least one")
        if rank not in range(num_replicas):
            raise ValueError(f"rank: {rank} is none of 0..{num_replicas - 1}")
        if size < 1:
            raise ValueError("dataset: nothing in it")
        self._size = size
        self._world = num_replicas
        self._rank = rank
        self._shuffle = shuffle
        self._seed = seed
        self._drop = drop_last
        self._epoch = 0
        self._resumed: int | None = None

    def set_epoch(self, epoch: int) -> None:
        if self._epoch != epoch:
            self._epoch, self._resumed = epoch, None

    def resume(self, epoch: int, samples_seen: int) -> None:
        self._epoch, self._resumed = epoch, samples_seen

    def _rest(self) -> np.ndarray:
        if self._shuffle:
            words = [self._seed % 2**64, self._epoch % 2**64]
            order = np.random.default_rng(np.random.SeedSequence(words)).permutation(self._size)
        else:
            order = np.arange(self._size)
        return order[self._resumed or 0 :]

    def __iter__(self) -> Iterator[int]:
        rest, rows = self._rest(), len(self)
        self._resumed = None
        # np.resize repeats from the beginning where it is longer, and cuts where it is shorter.
        table = np.resize(rest, (rows, self._world))
        return iter(table[:, self._rank].tolist())

    def __len__(self) -> int:
        rest = max(self._size - (self._resumed or 0), 0)
        rows, over = divmod(rest, self._world)
        return rows + (1 if over and not self._drop else 0)


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    """Sizes as an array, their running sum as the boundaries."""
    sizes = np.full(num_replicas, num_samples // num_replicas, dtype=np.int64)
    sizes[: num_samples % num_replicas] += 1
    stop = int(sizes[: rank + 1].sum())
    return range(stop - int(sizes[rank]), stop)


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    """Let numpy find the cuts, then slice: `array_split` makes the larger parts first, too."""
    count = int(batch[0].shape[0])
    if num_microbatches < 1 or count < num_microbatches:
        raise ValueError(f"num_microbatches={num_microbatches} for {count} samples")
    parts = np.array_split(np.arange(count), num_microbatches)
    return [tuple(tensor[int(part[0]) : int(part[-1]) + 1] for tensor in batch) for part in parts]
