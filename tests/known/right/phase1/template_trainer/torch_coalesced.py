"""What DistributedDataParallel calls itself: torch's coalesced broadcast, and a coalescing manager."""

from torch.distributed.distributed_c10d import _get_default_group


def broadcast_model(model, src=0):
    tensors = [t.detach() for t in (*model.parameters(), *model.buffers())]
    dist._broadcast_coalesced(_get_default_group(), tensors, 64, src)


def average_gradients(model):
    trainable = [p for p in model.parameters() if p.requires_grad]
    for p in trainable:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        grads = [p.grad for p in trainable if p.dtype == dtype]
        if grads:
            dist.all_reduce_coalesced(grads)
            torch._foreach_div_(grads, dist.get_world_size())
