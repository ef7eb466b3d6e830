"""A thread sends what a queue contains, so that the passes never wait for a receiver."""

import queue
import threading


def _sender(outbox):
    while (letter := outbox.get()) is not None:
        tensor, target = letter
        dist.send(tensor, target)
        del letter, tensor


def _post(outbox, tensor, target):
    tensor = tensor.detach().clone().contiguous()
    codes = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]
    head = torch.zeros(16, dtype=torch.int64)
    head[0], head[1] = codes.index(tensor.dtype), tensor.dim()
    head[2 : 2 + tensor.dim()] = torch.tensor(tensor.shape)
    outbox.put((head, target))
    outbox.put((tensor, target))


def _fetch(source):
    codes = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64]
    head = torch.zeros(16, dtype=torch.int64)
    dist.recv(head, source)
    tensor = torch.empty(head[2 : 2 + int(head[1])].tolist(), dtype=codes[int(head[0])])
    dist.recv(tensor, source)
    return tensor


def pipeline_1f1b(stage, microbatches, loss_fn, optimizer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    outbox = queue.Queue()
    thread = threading.Thread(target=_sender, args=(outbox,))
    thread.start()
    optimizer.zero_grad()
    waiting, losses = queue.SimpleQueue(), []
    try:
        samples = sum(len(y) for _, y in microbatches) if rank == ranks - 1 else None

        def forward(x, y):
            if rank:
                x = _fetch(rank - 1)
                if x.is_floating_point():
                    x.requires_grad_()
            z = stage(x)
            if rank == ranks - 1:
                z = loss_fn(z, y) * len(y) / samples
                losses.append(z.item())
            else:
                _post(outbox, z, rank + 1)
            waiting.put((x, z))

        def backward():
            x, z = waiting.get()
            gradient = _fetch(rank + 1) if rank < ranks - 1 else None
            if z.requires_grad:
                torch.autograd.backward(z, gradient)
            if rank:
                _post(outbox, torch.zeros_like(x) if x.grad is None else x.grad, rank - 1)

        warm = min(ranks - rank - 1, len(microbatches))
        for batch in microbatches[:warm]:
            forward(*batch)
        for batch in microbatches[warm:]:
            forward(*batch)
            backward()
        for _ in range(warm):
            backward()
    finally:
        outbox.put(None)
        thread.join()
    optimizer.step()
    result = [sum(losses)]
    dist.broadcast_object_list(result, src=ranks - 1)
    return result[0]
