"""Sharding and loading.

The design separates three concerns, each behind a small interface:

* *ordering*  -- in which order an epoch visits the samples (:class:`EpochOrder`),
* *sharding*  -- which slice of that order belongs to a rank (:class:`ContiguousShard`),
* *loading*   -- how batches are built (:func:`create_dataloaders`).
"""

import abc
import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from torch.utils.data import SequentialSampler

_MASK: Final[int] = (1 << 64) - 1


class Phase(enum.Enum):
    """What a loader is for."""

    TRAIN = "train"
    VALIDATION = "validation"

    @property
    def shuffles(self) -> bool:
        return self is Phase.TRAIN


class EpochOrder(abc.ABC):
    """Produces the order of an epoch, before padding."""

    @abc.abstractmethod
    def indices(self, size: int, epoch: int) -> Sequence[int]: ...


class NaturalOrder(EpochOrder):
    def indices(self, size: int, epoch: int) -> Sequence[int]:
        return range(size)


@dataclass(frozen=True)
class PermutedOrder(EpochOrder):
    """A permutation drawn from a generator keyed by `(seed, epoch)` and by nothing else."""

    seed: int

    def indices(self, size: int, epoch: int) -> Sequence[int]:
        # Philox is counter based: its 128-bit key takes both numbers without mixing them.
        key = np.array([self.seed & _MASK, epoch & _MASK], dtype=np.uint64)
        generator = np.random.Generator(np.random.Philox(key=key))
        return generator.permutation(size).tolist()


@dataclass(frozen=True)
class ContiguousShard:
    """The r-th of N contiguous chunks of an order closed to a ring."""

    num_replicas: int
    rank: int

    def __post_init__(self) -> None:
        if self.num_replicas < 1:
            raise ValueError(f"num_replicas has to be at least 1, got {self.num_replicas}")
        if self.rank not in range(self.num_replicas):
            raise ValueError(f"rank has to lie in 0..{self.num_replicas - 1}, got {self.rank}")

    def size(self, total: int) -> int:
        return math.ceil(total / self.num_replicas)

    def take(self, order: Sequence[int]) -> list[int]:
        size, total = self.size(len(order)), len(order)
        begin = self.rank * size
        return [order[position % total] for position in range(begin, begin + size)]


class PaddedDistributedSampler(Sampler[int]):
    """One rank's equal, contiguous, padded share of a dataset."""

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        self._shard = ContiguousShard(num_replicas, rank)
        self._total = len(dataset)
        if self._total == 0:
            raise ValueError("dataset is empty")
        self._order: EpochOrder = PermutedOrder(seed) if shuffle else NaturalOrder()
        self._epoch = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(self._shard.take(self._order.indices(self._total, self._epoch)))

    def __len__(self) -> int:
        return self._shard.size(self._total)


@dataclass(frozen=True)
class LoaderFactory:
    """Builds the loader of a phase for one rank."""

    batch_size: int
    world_size: int
    rank: int
    seed: int
    options: dict = field(default_factory=dict)

    def build(self, dataset: Dataset, phase: Phase) -> DataLoader:
        common = {"batch_size": self.batch_size, "drop_last": False, **self.options}
        if self.world_size > 1:
            sampler = PaddedDistributedSampler(
                dataset, self.world_size, self.rank, shuffle=phase.shuffles, seed=self.seed
            )
            return DataLoader(dataset, sampler=sampler, **common)
        if phase.shuffles:
            generator = torch.Generator()
            generator.manual_seed(self.seed)
            return DataLoader(dataset, shuffle=True, generator=generator, **common)
        return DataLoader(dataset, sampler=SequentialSampler(dataset), **common)


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
    factory = LoaderFactory(
        batch_size,
        world_size,
        rank,
        seed,
        options={"num_workers": num_workers, "pin_memory": pin_memory},
    )
    return factory.build(train_dataset, Phase.TRAIN), factory.build(val_dataset, Phase.VALIDATION)
