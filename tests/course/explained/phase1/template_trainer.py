"""Functions of a trainer that have the right lines of `phase1/codes.toml`."""

from pathlib import Path

import torch
import torch.distributed as dist


def broadcast_model(model, src=0):
    for t in (*model.parameters(), *model.buffers()):
        received = t.detach().clone()
        dist.broadcast(received, src=src)
        t.detach().copy_(received)


def average_gradients(model):
    for p in model.parameters():
        if p.requires_grad:
            average(p)


def average(p):
    world_size = dist.get_world_size()
    if p.grad is None:
        p.grad = torch.zeros_like(p.data)
    dist.all_reduce(p.grad)
    p.grad /= world_size


def train_step(model, batch, loss_fn, optimizer):
    device, world_size = next(model.parameters()).device, dist.get_world_size()
    x, y = batch[0].to(device), batch[1].to(device)
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    everyone = loss.detach() / world_size
    dist.all_reduce(everyone)
    return everyone.item()


def train_epoch(model, loader, loss_fn, optimizer, epoch):
    model.train()
    set_epoch = getattr(loader.sampler, "set_epoch", None)
    if set_epoch:
        set_epoch(epoch)
    total, count = 0.0, 0
    for batch in loader:
        loss = train_step(model, batch, loss_fn, optimizer)
        total += loss * len(batch[1])
        count += len(batch[1])
    return total / count


def save_checkpoint(path, model, optimizer, epoch):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.tmp")
        Path(f"{path}.tmp").replace(path)
    dist.barrier()


def load_checkpoint(path, model, optimizer):
    saved = torch.load(path, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["epoch"]


def evaluate(model, loader, loss_fn):
    before = model.training
    model.eval()
    numbers = measure(model, loader, loss_fn)
    model.train(before)
    loss, correct, count = numbers.tolist()
    accuracy = correct / count
    return {"loss": loss / count, "accuracy": accuracy, "samples": int(count)}


def measure(model, loader, loss_fn):
    numbers = torch.zeros(3, dtype=torch.float64)
    for batch in loader:
        numbers += sums_of(model, batch, loss_fn)
    dist.all_reduce(numbers)
    return numbers


def sums_of(model, batch, loss_fn):
    x, y = batch
    with torch.no_grad():
        outputs = model(x)
        loss = loss_fn(outputs, y)
    correct = (outputs.argmax(1) == y).sum()
    return torch.tensor([loss.item() * len(y), correct, len(y)], dtype=torch.float64)
