"""1F1B as Megatron has it: what neighbours send each other at one time is one batch of messages."""

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64]


def _swap(outgoing, peer, receives):
    """Send a tensor (or None) to a rank and receive one from it at the same time."""
    dims = torch.zeros(1, dtype=torch.int64)
    works = []
    if outgoing is not None:
        outgoing = outgoing.detach().contiguous()
        shape = torch.tensor([KINDS.index(outgoing.dtype), *outgoing.shape])
        first = torch.tensor([len(shape)])
        for part in (first, shape, outgoing):
            works.append(dist.isend(part, peer))
    arrived = None
    if receives:
        dist.irecv(dims, peer).wait()
        shape = torch.zeros(int(dims), dtype=torch.int64)
        dist.irecv(shape, peer).wait()
        arrived = torch.empty(*shape[1:].tolist(), dtype=KINDS[int(shape[0])])
        dist.irecv(arrived, peer).wait()
    for work in works:
        work.wait()
    return arrived


def pipeline_1f1b(stage, microbatches, loss_fn, optimizer):
    me, n, count = dist.get_rank(), dist.get_world_size(), len(microbatches)
    before, after = (me - 1 if me else None), (me + 1 if me + 1 < n else None)
    optimizer.zero_grad(set_to_none=True)
    queue, losses = [], []
    total = sum(len(t) for _, t in microbatches) if after is None else 1

    def forward(k, arrived):
        given = microbatches[k][0] if before is None else arrived
        if before is not None and given.is_floating_point():
            given.requires_grad_()
        out = stage(given)
        if after is None:
            targets = microbatches[k][1]
            out = loss_fn(out, targets) * len(targets) / total
            losses.append(out.detach())
        queue.append((given, out))
        return out

    def backward(grad):
        given, out = queue.pop(0)
        if out.requires_grad:
            torch.autograd.backward(out, grad)
        back = given.grad if before is not None else None
        return torch.zeros_like(given) if before is not None and back is None else back

    warm = min(n - me - 1, count)
    for k in range(warm):
        arrived = None if before is None else _swap(None, before, True)
        out = forward(k, arrived)
        _swap(out, after, False)
    steady = count - warm
    arrived = _swap(None, before, True) if before is not None and steady else None
    for k in range(steady):
        out = forward(warm + k, arrived)
        grad = _swap(out, after, True) if after is not None else None
        del out
        back = backward(grad)
        if before is not None:
            arrived = _swap(back, before, k + 1 < steady)
    for _ in range(warm):
        back = backward(_swap(None, after, True))
        if before is not None:
            _swap(back, before, False)
    optimizer.step()
    loss = torch.stack(losses).sum().double() if losses else torch.zeros((), dtype=torch.float64)
    dist.broadcast(loss, n - 1)
    return float(loss)
