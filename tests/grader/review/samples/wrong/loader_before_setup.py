"""The loader checks for a process group before `setup_distributed` creates it."""

# expect: DDP001

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup_distributed():
    if "RANK" not in os.environ:
        return torch.device("cpu"), False, 0, 1
    dist.init_process_group(backend="nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank), True, dist.get_rank(), dist.get_world_size()


def build_loader(config):
    dataset = TensorDataset(torch.randn(100, 4), torch.randn(100, 1))
    sampler = None
    if dist.is_available() and dist.is_initialized():
        sampler = DistributedSampler(dataset)
    return DataLoader(  # here
        dataset, config["batch_size"], shuffle=sampler is None, sampler=sampler
    )


def train_operator(config):
    loader = build_loader(config)
    operator = nn.Linear(4, 1)
    device, is_distributed, rank, world_size = setup_distributed()
    operator.to(device)
    if is_distributed:
        operator = DDP(operator, device_ids=[device.index])
    optimizer = torch.optim.AdamW(operator.parameters())
    for epoch in range(config["epochs"]):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(operator(inputs.to(device)), targets.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if is_distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    train_operator({"batch_size": 8, "epochs": 2})
