"""Fisher and Yates on a generator of its own; sizes first, then their boundaries."""

from itertools import accumulate

_MASK = (1 << 64) - 1


def _splitmix(state: int) -> tuple[int, int]:
    """One step of SplitMix64: the next state and a number of 64 bits."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    mixed = state
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return state, mixed ^ (mixed >> 31)


def _permutation(size: int, seed: int, epoch: int) -> list[int]:
    """Fisher and Yates, driven by SplitMix64: depends on no library's generator."""
    _, first = _splitmix(seed & _MASK)
    _, state = _splitmix((first ^ (epoch & _MASK)) & _MASK)
    order = list(range(size))
    for last in range(size - 1, 0, -1):
        state, number = _splitmix(state)
        other = number * (last + 1) >> 64
        order[last], order[other] = order[other], order[last]
    return order


class ResumableDistributedSampler(Sampler[int]):
    """The strided share of one rank, on a self-made generator."""

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas < 1:
            raise ValueError(f"num_replicas < 1: {num_replicas}")
        if not (0 <= rank <= num_replicas - 1):
            raise ValueError(f"rank outside 0..{num_replicas - 1}: {rank}")
        if not len(dataset):
            raise ValueError("dataset without samples")
        self._dataset = dataset
        self._n, self._r = num_replicas, rank
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._epoch = 0
        self._resume_at: tuple[int, int] | None = None

    @property
    def _seen(self) -> int:
        if self._resume_at is None or self._resume_at[0] != self._epoch:
            return 0
        return min(self._resume_at[1], len(self._dataset))

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        if self._resume_at is not None and self._resume_at[0] != epoch:
            self._resume_at = None

    def resume(self, epoch: int, samples_seen: int) -> None:
        self._epoch = epoch
        self._resume_at = (epoch, samples_seen)

    def __iter__(self) -> Iterator[int]:
        size, seen, rows = len(self._dataset), self._seen, len(self)
        self._resume_at = None
        if self._shuffle:
            order = _permutation(size, self._seed, self._epoch)
        else:
            order = list(range(size))
        left = size - seen
        # Position p of what is left, modulo its length, is the padding as well.
        mine = (row * self._n + self._r for row in range(rows))
        return iter([order[seen + position % left] for position in mine])

    def __len__(self) -> int:
        left = len(self._dataset) - self._seen
        return left // self._n if self._drop_last else (left + self._n - 1) // self._n


def _even_sizes(total: int, parts: int) -> list[int]:
    """Sizes that differ by at most one, larger first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def shard_without_padding(num_samples: int, num_replicas: int, rank: int) -> range:
    edges = list(accumulate(_even_sizes(num_samples, num_replicas), initial=0))
    return range(*edges[rank : rank + 2])


def split_microbatches(batch: Sequence[Tensor], num_microbatches: int) -> list[tuple[Tensor, ...]]:
    total = batch[0].size(0)
    if not 1 <= num_microbatches <= total:
        raise ValueError(f"cannot make num_microbatches={num_microbatches} parts of {total} samples")
    small, extra = divmod(total, num_microbatches)
    sizes = [small + 1] * extra + [small] * (num_microbatches - extra)
    columns = [tensor.split(sizes, dim=0) for tensor in batch]
    return [tuple(column[i] for column in columns) for i in range(num_microbatches)]
