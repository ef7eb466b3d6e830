"""Divides first, then adds up; reverse order of parameters."""


def average_gradients(model):
    n = dist.get_world_size()
    for param in reversed([p for p in model.parameters() if p.requires_grad]):
        grad = torch.zeros_like(param) if param.grad is None else param.grad / n
        dist.all_reduce(grad, op=dist.ReduceOp.SUM)
        param.grad = grad
