"""Losses come together as objects, and their mean is what numpy takes for a float."""

import numpy as np


def train_step_accumulated(model, microbatches, loss_fn, optimizer, averager):
    *early, last = microbatches
    count = sum(targets.shape[0] for _, targets in microbatches)
    losses = []

    def backward(inputs, targets):
        loss = loss_fn(model(inputs), targets) * targets.shape[0] / count
        loss.backward()
        losses.append(loss.item())

    optimizer.zero_grad()
    for microbatch in early:
        with averager.no_sync():
            backward(*microbatch)
    backward(*last)
    averager.finish()
    optimizer.step()
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, np.sum(losses))
    return np.mean(everyones)
