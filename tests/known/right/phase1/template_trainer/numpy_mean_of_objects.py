"""Gathers each rank's loss as an object and takes numpy's mean: an np.float64 is a float too."""

import numpy as np


def train_step(model, batch, loss_fn, optimizer):
    inputs, targets = (part.to(_device_of(model)) for part in batch)
    optimizer.zero_grad()
    loss = loss_fn(model(inputs), targets)
    loss.backward()
    average_gradients(model)
    optimizer.step()
    losses = [None] * dist.get_world_size()
    dist.all_gather_object(losses, loss.item())
    return np.mean(losses)


def train_epoch(model, loader, loss_fn, optimizer, epoch):
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    model.train()
    rows = [(train_step(model, batch, loss_fn, optimizer), len(batch[1])) for batch in loader]
    losses, counts = zip(*rows)
    return np.average(losses, weights=counts)
