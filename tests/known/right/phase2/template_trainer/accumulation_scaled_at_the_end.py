"""Sums losses over samples, all but the last under one no_sync, and scales the gradients."""


def train_step_accumulated(model, microbatches, loss_fn, optimizer, averager):
    device = next(model.parameters()).device
    *early, last = [tuple(part.to(device) for part in batch) for batch in microbatches]
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    summed, count = 0.0, 0

    def backward(inputs, targets):
        nonlocal summed, count
        loss = loss_fn(model(inputs), targets) * targets.size(0)
        loss.backward()
        summed += loss.item()
        count += targets.size(0)

    with averager.no_sync():
        for inputs, targets in early:
            backward(inputs, targets)
    backward(*last)
    averager.finish()
    for p in model.parameters():
        if p.requires_grad and p.grad is not None:
            p.grad /= count
    optimizer.step()
    losses = [None] * dist.get_world_size()
    dist.all_gather_object(losses, summed)
    return sum(losses) / (count * len(losses))
