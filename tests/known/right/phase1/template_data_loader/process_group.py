"""Loaders of a class of their own, where they have no say in the order."""


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
