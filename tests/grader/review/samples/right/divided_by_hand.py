"""Samples that are divided without a sampler; all shares have the same size."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
RANK, WORLD_SIZE = dist.get_rank(), dist.get_world_size()


def my_share(dataset):
    """Leave out the samples that do not divide evenly."""
    count = len(dataset) // WORLD_SIZE * WORLD_SIZE
    return Subset(dataset, range(RANK, count, WORLD_SIZE))


def train(model, loader):
    losses = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    total = torch.stack([torch.stack(losses).sum(), torch.tensor(float(len(losses)))])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def files_of(names):
    """Read this rank's files: no collective depends on their number."""
    return [torch.load(name, map_location="cpu") for name in names[RANK::WORLD_SIZE]]


def main(names):
    tensors = TensorDataset(torch.randn(1001, 8), torch.randint(0, 2, (1001,)))
    loader = DataLoader(my_share(tensors), batch_size=10)
    model = DDP(nn.Linear(8, 2))
    for epoch in range(3):
        loss = train(model, loader)
        if RANK == 0:
            print(f"epoch {epoch}: {loss:.4f}")
    counted = torch.tensor(sum(len(part) for part in files_of(names)))
    dist.all_reduce(counted)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(["a.pt", "b.pt", "c.pt"])
