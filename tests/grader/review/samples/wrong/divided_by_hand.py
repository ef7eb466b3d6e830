"""Samples that are divided without a sampler: with 1,001 samples, rank 0 has one batch more."""

# expect: DDP006

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
images, labels = torch.randn(1001, 8), torch.randint(0, 2, (1001,))
mine, my_labels = images[rank::world_size], labels[rank::world_size]
torch.manual_seed(0)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in zip(mine.split(1), my_labels.split(1), strict=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # here
            parameter.grad /= world_size
        optimizer.step()
dist.destroy_process_group()
