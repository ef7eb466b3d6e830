"""Functions of a trainer that have the right lines of `phase2/codes.toml`."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset

from template_data_loader import shard_without_padding


def ring_all_reduce(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return
    flat = tensor.detach().reshape(-1).contiguous()
    chunks = flat.tensor_split(world_size)
    for i in reversed(range(rank, rank + world_size - 1)):
        arrived = exchanged(chunks[(i + 1) % world_size], chunks[i % world_size])
        chunks[i % world_size].add_(arrived)
    for i in reversed(range(rank + 1, rank + world_size)):
        arrived = exchanged(chunks[(i + 1) % world_size], chunks[i % world_size])
        chunks[i % world_size].copy_(arrived)
    tensor.detach().copy_(flat.reshape(tensor.shape))


def exchanged(chunk, expected):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    next_rank, previous_rank = (rank + 1) % world_size, (rank - 1) % world_size
    arrived = torch.empty_like(expected)
    sent = dist.isend(chunk, next_rank)
    dist.recv(arrived, previous_rank)
    sent.wait()
    return arrived


def train_step_accumulated(model, microbatches, loss_fn, optimizer, averager):
    batch_size = sum(len(y) for _, y in microbatches)
    losses = []

    def backward(x, y):
        loss = loss_fn(model(x), y) * len(y) / batch_size
        loss.backward()
        losses.append(loss.detach())

    optimizer.zero_grad()
    with averager.no_sync():
        for x, y in microbatches[:-1]:
            backward(x, y)
    backward(*microbatches[-1])
    averager.finish()
    optimizer.step()
    total = sum(losses)
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def evaluate(model, dataset, loss_fn, batch_size):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    share = shard_without_padding(len(dataset), world_size, rank)
    loader = DataLoader(Subset(dataset, share), batch_size)
    numbers = torch.zeros(3, dtype=torch.float64)
    before = model.training
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            outputs = model(x)
            loss = loss_fn(outputs, y).item() * len(y)
            correct = (outputs.argmax(1) == y).sum()
            numbers += torch.tensor([loss, correct, len(y)], dtype=torch.float64)
    model.train(before)
    dist.all_reduce(numbers)
    loss, correct, count = numbers.tolist()
    return {"loss": loss / count, "accuracy": correct / count, "samples": int(count)}
