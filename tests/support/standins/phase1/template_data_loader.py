"""Replaces the data loader file if a submission has none, so that its trainer can be judged.

It uses torch's own sampler: the shares are equal, and it contains no solution of the exercise.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, DistributedSampler


def create_dataloaders(
    train_dataset: Any,
    val_dataset: Any,
    batch_size: int,
    *,
    world_size: int = 1,
    rank: int = 0,
    seed: int = 0,
    **options: Any,
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    train: Any = DistributedSampler(train_dataset, world_size, rank, seed=seed)
    val: Any = DistributedSampler(val_dataset, world_size, rank, shuffle=False)
    return (
        DataLoader(train_dataset, batch_size, sampler=train, **options),
        DataLoader(val_dataset, batch_size, sampler=val, **options),
    )
