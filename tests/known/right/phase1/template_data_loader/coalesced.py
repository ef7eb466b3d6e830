"""Phase 1, data. Lots are drawn as random numbers and sorted; shares are rows of a view."""

import hashlib
from typing import NamedTuple

from torch import Tensor


class Share(NamedTuple):
    samples: int
    ranks: int
    rank: int

    @property
    def size(self) -> int:
        full, rest = divmod(self.samples, self.ranks)
        return full + 1 if rest else full

    def of(self, order: Tensor) -> Tensor:
        positions = torch.arange(self.size * self.ranks).view(self.ranks, self.size)[self.rank]
        return order.index_select(0, positions.remainder(self.samples))


def generator_for(seed: int, epoch: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{epoch}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:4], "little"))


class PaddedDistributedSampler(Sampler[int]):
    """Equal, contiguous shares of an order that is closed to a ring.

    Differs from `torch.utils.data.distributed.DistributedSampler`, which deals out every N-th.
    """

    def __init__(
        self, dataset: Sized, num_replicas: int, rank: int, *, shuffle: bool = True, seed: int = 0
    ) -> None:
        if num_replicas < 1:
            raise ValueError(f"num_replicas must be >= 1 (is {num_replicas})")
        if rank not in range(num_replicas):
            raise ValueError(f"rank must be in [0, {num_replicas}) (is {rank})")
        if len(dataset) == 0:
            raise ValueError("dataset must not be empty")
        self.share = Share(len(dataset), num_replicas, rank)
        self.shuffle, self.seed, self.epoch = shuffle, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.share.samples)
        lots = torch.rand(
            self.share.samples, dtype=torch.float64, generator=generator_for(self.seed, self.epoch)
        )
        return torch.argsort(lots, stable=True)

    def __iter__(self) -> Iterator[int]:
        return iter(self.share.of(self.order()).tolist())

    def __len__(self) -> int:
        return self.share.size


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
    workers = {"persistent_workers": True, "prefetch_factor": 2} if num_workers > 0 else {}
    common = {"batch_size": batch_size, "num_workers": num_workers, "pin_memory": pin_memory, **workers}
    if world_size == 1:
        return (
            DataLoader(train_dataset, shuffle=True, generator=generator_for(seed, 0), **common),
            DataLoader(val_dataset, shuffle=False, **common),
        )
    train_sampler = PaddedDistributedSampler(train_dataset, world_size, rank, shuffle=True, seed=seed)
    val_sampler = PaddedDistributedSampler(val_dataset, world_size, rank, shuffle=False, seed=seed)
    return (
        DataLoader(train_dataset, sampler=train_sampler, **common),
        DataLoader(val_dataset, sampler=val_sampler, **common),
    )
