"""Ranks that leave loops in different rounds; these loops contain no collectives."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def first_mistake(model, loader):
    """Return the first sample of this rank that the model gets wrong."""
    with torch.no_grad():
        for inputs, targets in loader:
            wrong = model.module(inputs).argmax(1) != targets
            if wrong.any():
                return inputs[wrong][0]
    return None


def train():
    dist.init_process_group("gloo")
    dataset = TensorDataset(torch.randn(1000, 10), torch.randint(0, 2, (1000,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    model = DDP(nn.Linear(10, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            scale = 1.0
            while (inputs * scale).abs().max() > 10:
                scale /= 2
            loss = nn.functional.cross_entropy(model(inputs * scale), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        sample = first_mistake(model, loader)
        found = torch.tensor(int(sample is not None))
        dist.all_reduce(found)
        if not found:
            break
    dist.destroy_process_group()


train()
