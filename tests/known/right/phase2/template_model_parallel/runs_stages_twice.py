"""The pipeline as GPipe's paper has it: activations are not kept, but made again for backward."""


def pipeline_train_step(stage, microbatches, loss_fn, optimizer):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first, last = rank == 0, rank == world_size - 1
    optimizer.zero_grad()

    kept = []
    for inputs, _ in microbatches:
        kept.append(inputs if first else _receive(rank - 1, torch.device("cpu")))
        with torch.no_grad():
            outputs = stage(kept[-1])
        if not last:
            _send(outputs, rank + 1)

    losses, counts = [], []
    for arrived, (_, targets) in zip(kept, microbatches):
        if not first:
            arrived = arrived.detach().requires_grad_()
        outputs = stage(arrived)
        if last:
            losses.append(loss_fn(outputs, targets))
            counts.append(len(targets))
            everyone = sum(len(t) for _, t in microbatches)
            (losses[-1] * counts[-1] / everyone).backward()
        else:
            grad = _receive(rank + 1, torch.device("cpu"))
            if outputs.requires_grad:
                torch.autograd.backward([outputs], [grad])
        if not first:
            _send(arrived.grad, rank - 1)
    optimizer.step()
    mean = sum(loss.item() * c for loss, c in zip(losses, counts)) / max(1, sum(counts))
    everyones = [None] * world_size
    dist.all_gather_object(everyones, mean)
    return everyones[-1]
