"""The GPU is a constant at the top of the script, as in scripts for one GPU."""

# expect: DDP022, DDP013

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

device = "cuda:0"
checkpoint = "model.pt"

dist.init_process_group(backend="nccl")
dataset = TensorDataset(torch.randn(100, 4), torch.randn(100, 1))
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, batch_size=8, sampler=sampler)
model = nn.Linear(4, 1).to(device)  # here
model = DDP(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.path.exists(checkpoint):
    model.load_state_dict(torch.load(checkpoint))  # here
for epoch in range(10):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
if dist.get_rank() == 0:
    torch.save(model.state_dict(), checkpoint)
dist.destroy_process_group()
