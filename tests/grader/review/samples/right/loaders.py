"""A function makes the loaders; without ranks, it uses no sampler."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __len__(self):
        return 1003

    def __getitem__(self, index):
        return torch.full((4,), float(index)), index % 2


def create_dataloaders(train_set, val_set, batch_size, world_size=1, rank=0):
    train_sampler, val_sampler = None, None
    if world_size > 1:
        train_sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank)
        val_sampler = DistributedSampler(val_set, num_replicas=world_size, rank=rank, shuffle=False)
    train_loader = DataLoader(
        train_set, batch_size, shuffle=train_sampler is None, sampler=train_sampler
    )
    val_loader = DataLoader(val_set, batch_size, sampler=val_sampler)
    return train_loader, val_loader


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    train_set, val_set = Images(), Images()
    train_loader, val_loader = create_dataloaders(train_set, val_set, 32, world_size, rank)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(5):
        if hasattr(train_loader.sampler, "set_epoch"):
            train_loader.sampler.set_epoch(epoch)
        for inputs, targets in train_loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
