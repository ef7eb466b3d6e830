"""Phase 1 in a functional key: orders are streams, shards are slices of a cycle."""

from functools import partial
from itertools import cycle, islice
from random import Random
from typing import Callable, Iterator


def ensure(condition, message):
    """An expression that raises, since `raise` is not one."""
    return condition or (_ for _ in ()).throw(ValueError(message)).send(None)


def identity_order(size: int, _epoch: int) -> range:
    return range(size)


def shuffled_order(seed: int, size: int, epoch: int) -> list[int]:
    # A string seed is hashed with SHA-512 by `Random`, not by `hash`: the same in every process.
    return Random(f"order of epoch {epoch} under seed {seed}").sample(range(size), size)


def shard(order, size: int, start: int) -> Iterator[int]:
    return islice(cycle(order), start, start + size)


class PaddedDistributedSampler(Sampler[int]):
    """Nothing but closures over its arguments and one cell for the epoch."""

    def __init__(self, dataset, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0) -> None:
        ensure(num_replicas >= 1, f"num_replicas={num_replicas}, must be positive")
        ensure(0 <= rank < num_replicas, f"rank={rank}, must be at least 0 and less than {num_replicas}")
        total = len(dataset)
        ensure(total > 0, "dataset has no samples")
        size = (total + num_replicas - 1) // num_replicas
        order = partial(shuffled_order, seed) if shuffle else identity_order
        cell = {"epoch": 0}
        self.set_epoch: Callable[[int], None] = lambda epoch: cell.update(epoch=epoch)
        self._indices = lambda: shard(order(total, cell["epoch"]), size, rank * size)
        self._size = lambda: size

    def __iter__(self) -> Iterator[int]:
        return self._indices()

    def __len__(self) -> int:
        return self._size()


def create_dataloaders(
    train_dataset,
    val_dataset,
    batch_size: int,
    *,
    world_size: int = 1,
    rank: int = 0,
    seed: int = 0,
    num_workers: int = 0,
    pin_memory: bool = False,
) -> tuple[DataLoader, DataLoader]:
    loader = partial(DataLoader, batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory)
    share = lambda data, shuffle: PaddedDistributedSampler(data, world_size, rank, shuffle=shuffle, seed=seed)
    alone = world_size == 1
    return (
        loader(train_dataset, shuffle=True, generator=torch.Generator().manual_seed(seed))
        if alone
        else loader(train_dataset, sampler=share(train_dataset, True)),
        loader(val_dataset) if alone else loader(val_dataset, sampler=share(val_dataset, False)),
    )
