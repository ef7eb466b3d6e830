"""Context managers create the process group and return the rank."""

import contextlib
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class World:
    rank: int
    size: int

    @property
    def chief(self):
        return not self.rank


@contextlib.contextmanager
def world():
    dist.init_process_group("gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def asked():
    yield int(os.environ["RANK"]) == 0


class Writer:
    def __init__(self, rank):
        self.rank = rank

    def __enter__(self):
        return self.rank == 0

    def __exit__(self, *_):
        pass


def train(here, net):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(3):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if here.chief:
            torch.save(net.module.state_dict(), "model.pt")
            print(epoch)


if __name__ == "__main__":
    with world() as here, asked() as writes:
        net = DistributedDataParallel(nn.Linear(4, 4))
        train(here, net)
        if writes:
            torch.save(net.module.state_dict(), "last.pt")
        with Writer(here.rank) as allowed:
            if allowed:
                torch.save(net.module.state_dict(), "copy.pt")
