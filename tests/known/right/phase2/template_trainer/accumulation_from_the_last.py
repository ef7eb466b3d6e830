"""From the last microbatch to the first, which alone is outside of no_sync."""

import contextlib


def train_step_accumulated(model, microbatches, loss_fn, optimizer, averager):
    sizes = torch.tensor([len(targets) for _, targets in microbatches], dtype=torch.float64)
    weights = sizes / sizes.sum()
    model.zero_grad(set_to_none=False)
    mean = 0.0
    with contextlib.ExitStack() as stack:
        stack.enter_context(averager.no_sync())
        for number in reversed(range(len(microbatches))):
            if number == 0:
                stack.close()
            weight, (inputs, targets) = weights[number].item(), microbatches[number]
            loss = loss_fn(model(inputs), targets)
            (weight * loss).backward()
            mean += weight * float(loss.detach())
    averager.finish()
    optimizer.step()
    mean = torch.tensor(mean / dist.get_world_size())
    dist.reduce(mean, 0)
    dist.broadcast(mean, 0)
    return float(mean)
