"""1F1B with blocking sends; where neighbours swap, the even one of the two sends first."""


def pipeline_1f1b(stage, microbatches, loss_fn, optimizer):
    r, n, m = dist.get_rank(), dist.get_world_size(), len(microbatches)
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
    sizes = [len(y) for _, y in microbatches] if r == n - 1 else []
    saved, value = {}, 0.0

    def run(k):
        x = microbatches[k][0] if r == 0 else _take(r - 1)
        if r and x.dtype.is_floating_point:
            x.requires_grad_(True)
        y = stage(x)
        saved[k] = x, y
        return y

    def back(k, dy):
        nonlocal value
        x, y = saved.pop(k)
        if r == n - 1:
            loss = loss_fn(y, microbatches[k][1])
            value += float(loss) * sizes[k] / sum(sizes)
            loss.backward(torch.tensor(sizes[k] / sum(sizes), dtype=loss.dtype))
        elif y.requires_grad:
            y.backward(dy)
        return x.grad if r and x.grad is not None else torch.zeros_like(x)

    warm = min(n - 1 - r, m)
    for k in range(warm):
        _give(run(k), r + 1)
    for k in range(m - warm):
        y, dy = run(warm + k), None
        if r < n - 1 and r % 2 == 0:
            _give(y, r + 1)
            dy = _take(r + 1)
        elif r < n - 1:
            dy = _take(r + 1)
            _give(y, r + 1)
        del y
        dx = back(k, dy)
        if r and (r - 1) % 2:
            _give(dx, r - 1)
        elif r:
            early[0] = _take(r - 1) if warm + k + 1 < m else None
            _give(dx, r - 1)
    for k in range(m - warm, m):
        dx = back(k, _take(r + 1))
        if r:
            _give(dx, r - 1)
    optimizer.step()
    result = torch.tensor([value if r == n - 1 else 0.0], dtype=torch.float64)
    dist.all_reduce(result)
    return result.item()


early = [None]
TYPES = (torch.float32, torch.float64, torch.int64, torch.float16)


def _give(tensor, to):
    head = [tensor.dim(), TYPES.index(tensor.dtype), *tensor.shape]
    dist.send(torch.tensor(head + [0] * (10 - len(head))), to)
    dist.send(tensor.detach().contiguous(), to)


def _take(source):
    if source < dist.get_rank() and early[0] is not None:
        tensor, early[0] = early[0], None
        return tensor
    head = torch.zeros(10, dtype=torch.int64)
    dist.recv(head, source)
    dims, kind = head[:2].tolist()
    tensor = torch.zeros(head[2 : 2 + dims].tolist(), dtype=TYPES[kind])
    dist.recv(tensor, source)
    return tensor
