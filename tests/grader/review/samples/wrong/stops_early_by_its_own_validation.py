"""Early stopping with patience, based on the validation loss of this rank's share."""

# expect: DDP017

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def evaluate(model, loader, criterion):
    total = 0.0
    with torch.no_grad():
        for inputs, targets in loader:
            total += criterion(model(inputs), targets).item()
    return total / len(loader)


def main():
    dist.init_process_group("gloo")
    train_set = TensorDataset(torch.randn(1000, 10), torch.randint(0, 2, (1000,)))
    val_set = TensorDataset(torch.randn(100, 10), torch.randint(0, 2, (100,)))
    sampler = DistributedSampler(train_set)
    train_loader = DataLoader(train_set, batch_size=32, sampler=sampler)
    val_loader = DataLoader(
        val_set, batch_size=32, sampler=DistributedSampler(val_set, shuffle=False)
    )
    model = DDP(nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = nn.CrossEntropyLoss()
    best, bad_epochs = float("inf"), 0
    for epoch in range(30):
        sampler.set_epoch(epoch)
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        val_loss = evaluate(model, val_loader, criterion)
        if val_loss < best:
            best, bad_epochs = val_loss, 0
        else:
            bad_epochs += 1
        if bad_epochs >= 3:  # here
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
