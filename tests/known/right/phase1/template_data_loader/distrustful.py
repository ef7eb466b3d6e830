"""Shares of a dataset. Nothing that comes in is believed before it has been looked at."""

import operator
import random

from torch.utils.data import BatchSampler, SequentialSampler


def _integer(value: object, name: str) -> int:
    """An int from anything that is one (numpy's too), but not from a bool or a float."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, not a bool")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}") from None


class PaddedDistributedSampler(Sampler[int]):
    """This rank's contiguous chunk of the epoch's padded order."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._n = _integer(num_replicas, "num_replicas")
        if self._n < 1:
            raise ValueError(f"num_replicas must be at least 1, but is {self._n}")
        self._r = _integer(rank, "rank")
        if self._r < 0:
            raise ValueError(f"rank must not be negative, but is {self._r}")
        if self._r >= self._n:
            raise ValueError(f"rank must be below {self._n}, but is {self._r}")
        self._m = len(dataset)
        if self._m < 1:
            raise ValueError("dataset must have at least one sample, but is empty")
        self._shuffle = bool(shuffle)
        self._seed = _integer(seed, "seed")
        self._epoch = 0

        quotient, remainder = divmod(self._m, self._n)
        self._size = quotient + (remainder > 0)
        assert self._size * self._n - self._m in range(self._n)

    def set_epoch(self, epoch: int) -> None:
        epoch = _integer(epoch, "epoch")
        if epoch < 0:
            raise ValueError(f"epoch must not be negative, but is {epoch}")
        self._epoch = epoch

    def _order(self) -> list[int]:
        order = list(range(self._m))
        if self._shuffle:
            # Bytes as a seed go through SHA-512 in `random.Random`; no `hash`, no global state.
            key = f"{self._seed}/{self._epoch}".encode()
            random.Random(key).shuffle(order)
        return order

    def __iter__(self) -> Iterator[int]:
        order = self._order()
        padded = order[:]
        while len(padded) < self._size * self._n:
            padded.extend(order[: self._size * self._n - len(padded)])
        if len(padded) != self._size * self._n or set(padded) != set(range(self._m)):
            raise AssertionError("the padded order is wrong; this is a bug in the sampler")
        chunk = padded[self._r * self._size : (self._r + 1) * self._size]
        if len(chunk) != self._size:
            raise AssertionError("the chunk is too short; this is a bug in the sampler")
        return iter(chunk)

    def __len__(self) -> int:
        return self._size


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
    batch_size = _integer(batch_size, "batch_size")
    world_size = _integer(world_size, "world_size")
    rank = _integer(rank, "rank")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, but is {batch_size}")
    if world_size < 1:
        raise ValueError(f"world_size must be at least 1, but is {world_size}")
    if not 0 <= rank < world_size:
        raise ValueError(f"rank must be in 0..{world_size - 1}, but is {rank}")

    shared = {
        "batch_size": batch_size,
        "num_workers": num_workers,
        "pin_memory": pin_memory,
        "drop_last": False,
    }
    if world_size == 1:
        generator = torch.Generator()
        generator.manual_seed(seed)
        train_loader = DataLoader(train_dataset, shuffle=True, generator=generator, **shared)
        val_loader = DataLoader(val_dataset, shuffle=False, **shared)
        assert isinstance(val_loader.sampler, SequentialSampler)
    else:
        train_loader = DataLoader(
            train_dataset,
            sampler=PaddedDistributedSampler(
                train_dataset, world_size, rank, shuffle=True, seed=seed
            ),
            **shared,
        )
        val_loader = DataLoader(
            val_dataset,
            sampler=PaddedDistributedSampler(
                val_dataset, world_size, rank, shuffle=False, seed=seed
            ),
            **shared,
        )
    for loader in (train_loader, val_loader):
        if not isinstance(loader.batch_sampler, BatchSampler) or loader.batch_sampler.drop_last:
            raise AssertionError("a loader would drop samples")
    return train_loader, val_loader
