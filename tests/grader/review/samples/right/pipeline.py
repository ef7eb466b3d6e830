"""Stages of one model on different ranks, which send activations to each other."""

import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.1)
    for step in range(10):
        inputs = torch.randn(4, 8, requires_grad=True)
        if rank > 0:
            dist.recv(inputs.data, rank - 1)
        outputs = stage(inputs)
        if rank < world_size - 1:
            handle = dist.isend(outputs.detach(), rank + 1)
            gradient = torch.empty_like(outputs)
            dist.recv(gradient, rank + 1)
            handle.wait()
            outputs.backward(gradient)
        else:
            loss = outputs.square().mean()
            loss.backward()
            print(f"step {step}: {loss.item():.4f}")
        if rank > 0:
            dist.send(inputs.grad, rank - 1)
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
