"""Phase 1: data. Batches come from a batch sampler, built by hand."""

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler


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
    if world_size > 1:
        train_sampler: Sampler = PaddedDistributedSampler(train_dataset, world_size, rank, seed=seed)
        val_sampler: Sampler = PaddedDistributedSampler(val_dataset, world_size, rank, shuffle=False)
    else:
        train_sampler = RandomSampler(train_dataset, generator=torch.Generator().manual_seed(seed))
        val_sampler = SequentialSampler(val_dataset)
    loaders = [
        DataLoader(
            dataset,
            batch_sampler=BatchSampler(sampler, batch_size, drop_last=False),
            num_workers=num_workers,
            pin_memory=pin_memory,
        )
        for dataset, sampler in ((train_dataset, train_sampler), (val_dataset, val_sampler))
    ]
    return loaders[0], loaders[1]
