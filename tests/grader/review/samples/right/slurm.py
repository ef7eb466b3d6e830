"""A script for srun, with a group for each node, and shards of an iterable dataset."""

import os
import subprocess

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset


def setup_distributed():
    rank = int(os.environ["SLURM_PROCID"])
    world_size = int(os.environ["SLURM_NTASKS"])
    local_rank = int(os.environ["SLURM_LOCALID"])
    if "MASTER_ADDR" not in os.environ:
        nodes = os.environ["SLURM_JOB_NODELIST"]
        host = subprocess.check_output(["scontrol", "show", "hostnames", nodes], text=True)
        os.environ["MASTER_ADDR"] = host.split()[0]
    if "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    torch.cuda.set_device(local_rank)
    return rank, world_size, local_rank


class Lines(IterableDataset):
    def __init__(self, path, rank, world_size):
        self.path = path
        self.rank = rank
        self.world_size = world_size

    def __iter__(self):
        with open(self.path) as file:
            for number, line in enumerate(file):
                if number % self.world_size == self.rank:
                    yield torch.tensor([float(word) for word in line.split()])


def main():
    rank, world_size, local_rank = setup_distributed()
    per_node = torch.cuda.device_count()
    groups = [
        dist.new_group(list(range(first, first + per_node)))
        for first in range(0, world_size, per_node)
    ]
    mine = groups[rank // per_node]
    model = DDP(nn.Linear(8, 1).to(local_rank), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Lines("data.txt", rank, world_size), batch_size=32)
    for epoch in range(10):
        for batch in loader:
            loss = model(batch.to(local_rank)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if local_rank == 0:
            dist.barrier(group=None)
        else:
            dist.barrier(group=None)
        node_loss = loss.detach().clone()
        dist.all_reduce(node_loss, group=mine)
        if local_rank == 0:
            print(f"epoch {epoch}: node {rank // per_node}: {node_loss.item() / per_node:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
