"""One flat all-reduce for all gradients of a dtype; train_step clears by None, not by zero."""


def average_gradients(model):
    trainable = [p for p in model.parameters() if p.requires_grad]
    for dtype in sorted({p.dtype for p in trainable}, key=str):
        group = [p for p in trainable if p.dtype == dtype]
        for p in group:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        flat = torch.cat([p.grad.reshape(-1) for p in group])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        start = 0
        for p in group:
            p.grad.copy_(flat[start : start + p.numel()].view_as(p))
            start += p.numel()
