"""The halves of an all-reduce one by one: reduce_scatter, then all-gather."""


def average_gradients(model):
    n = dist.get_world_size()
    for param in model.parameters():
        if not param.requires_grad:
            continue
        grad = torch.zeros_like(param) if param.grad is None else param.grad
        size = -(-grad.numel() // n)
        padded = grad.new_zeros(size * n)
        padded[: grad.numel()] = grad.reshape(-1)
        mine = grad.new_empty(size)
        dist.reduce_scatter(mine, list(padded.chunk(n)))
        mine /= n
        parts = [torch.empty_like(mine) for _ in range(n)]
        dist.all_gather(parts, mine)
        param.grad = torch.cat(parts)[: grad.numel()].view_as(param)
