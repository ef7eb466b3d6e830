"""A plan of passes is made first, then followed; shapes are sent as bytes of a pickle."""

import pickle
from collections import deque


def _plan(rank, ranks, count):
    ahead = min(ranks - 1 - rank, count)
    plan = ["F"] * ahead
    for _ in range(count - ahead):
        plan += ["F", "B"]
    return plan + ["B"] * ahead


def _outgoing(tensor, target):
    described = pickle.dumps((tuple(tensor.shape), tensor.dtype))
    content = torch.frombuffer(bytearray(described), dtype=torch.uint8)
    size = torch.tensor([len(content)], dtype=torch.int64)
    return [(dist.isend(one, target), one) for one in (size, content, tensor)]


def _incoming(source):
    size = torch.empty(1, dtype=torch.int64)
    dist.recv(size, source)
    content = torch.empty(size.item(), dtype=torch.uint8)
    dist.recv(content, source)
    shape, dtype = pickle.loads(content.numpy().tobytes())
    tensor = torch.empty(shape, dtype=dtype)
    dist.recv(tensor, source)
    return tensor.requires_grad_(dtype.is_floating_point)


def pipeline_1f1b(stage, microbatches, loss_fn, optimizer):
    rank, ranks, last = dist.get_rank(), dist.get_world_size(), dist.get_world_size() - 1
    samples = sum(len(targets) for _, targets in microbatches) if rank == last else 0
    optimizer.zero_grad()
    alive, sending, loss_sum = deque(), [], 0.0
    todo = deque(microbatches)
    for kind in _plan(rank, ranks, len(microbatches)):
        if kind == "F":
            inputs, targets = todo.popleft()
            if rank > 0:
                inputs = _incoming(rank - 1)
            outputs = stage(inputs)
            if rank == last:
                outputs = loss_fn(outputs, targets) * (len(targets) / samples)
                loss_sum += outputs.item()
            else:
                sending.append(_outgoing(outputs.detach().contiguous(), rank + 1))
            alive.append((inputs, outputs))
            del inputs, outputs, targets
        else:
            inputs, outputs = alive.popleft()
            gradient = None
            if rank < last:
                for work, _ in sending.pop(0):
                    work.wait()
                gradient = torch.empty_like(outputs, memory_format=torch.contiguous_format)
                dist.recv(gradient, rank + 1)
            if outputs.requires_grad:
                outputs.backward(gradient)
            if rank > 0:
                back = inputs.grad if inputs.grad is not None else torch.zeros_like(inputs)
                dist.send(back.contiguous(), rank - 1)
            del inputs, outputs, gradient
    optimizer.step()
    total = torch.tensor(loss_sum, dtype=torch.float64)
    dist.broadcast(total, src=last)
    return total.item()
