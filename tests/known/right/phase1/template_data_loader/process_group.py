"""Phase 1: data.

`PaddedDistributedSampler` is what `torch.utils.data.DistributedSampler` is, except that shares are
contiguous; its shuffle is PyTorch's, `randperm` seeded with `seed + epoch`.
"""

from typing import Iterator, Sized


class PaddedDistributedSampler(Sampler[int]):
    def __init__(
        self,
        dataset: Sized,
        num_replicas: int,
        rank: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
    ) -> None:
        if num_replicas < 1:
            raise ValueError(f"Invalid num_replicas {num_replicas}, it should be at least 1")
        if rank >= num_replicas or rank < 0:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        if len(dataset) == 0:
            raise ValueError("Invalid dataset, it should not be empty")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.epoch = 0
        self.num_samples = math.ceil(len(self.dataset) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.shuffle = shuffle
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            # deterministically shuffle based on epoch and seed
            g = torch.Generator()
            g.manual_seed(self.seed + self.epoch)
            indices = torch.randperm(len(self.dataset), generator=g).tolist()
        else:
            indices = list(range(len(self.dataset)))

        # add extra samples to make it evenly divisible
        padding_size = self.total_size - len(indices)
        if padding_size <= len(indices):
            indices += indices[:padding_size]
        else:
            indices += (indices * math.ceil(padding_size / len(indices)))[:padding_size]
        assert len(indices) == self.total_size

        # a slice of neighbours, not every num_replicas-th
        indices = indices[self.rank * self.num_samples : (self.rank + 1) * self.num_samples]
        assert len(indices) == self.num_samples
        return iter(indices)

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class InOrder(DataLoader):
    """A loader that has no say in the order."""

    def __init__(self, dataset: Dataset, **kwargs) -> None:
        super().__init__(dataset, shuffle=False, drop_last=False, **kwargs)


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
    is_distributed = world_size > 1
    train_sampler = val_sampler = None
    generator = None
    if is_distributed:
        train_sampler = PaddedDistributedSampler(
            train_dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=seed
        )
        val_sampler = PaddedDistributedSampler(
            val_dataset, num_replicas=world_size, rank=rank, shuffle=False, seed=seed
        )
    else:
        generator = torch.Generator()
        generator.manual_seed(seed)

    train_loader = DataLoader(
        train_dataset,
        batch_size=batch_size,
        shuffle=(train_sampler is None),
        sampler=train_sampler,
        num_workers=num_workers,
        pin_memory=pin_memory,
        drop_last=False,
        generator=generator,
    )
    if val_sampler is None:
        val_loader: DataLoader = InOrder(
            val_dataset, batch_size=batch_size, num_workers=num_workers, pin_memory=pin_memory
        )
    else:
        val_loader = DataLoader(
            val_dataset,
            batch_size=batch_size,
            sampler=val_sampler,
            num_workers=num_workers,
            pin_memory=pin_memory,
        )
    return train_loader, val_loader
