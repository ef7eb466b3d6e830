"""Loaders whose workers stay, with a generator seeded by a digest."""

import hashlib


def generator_for(seed: int, epoch: int) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{epoch}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:4], "little"))


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
