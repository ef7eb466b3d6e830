"""All of it at once: asynchronous handles, waited for in the end."""


def broadcast_model(model, src=0):
    handles = [
        dist.broadcast(tensor.data, src, async_op=True)
        for tensor in (*model.parameters(), *model.buffers())
    ]
    for handle in handles:
        handle.wait()


def average_gradients(model):
    pending = []
    for param in model.parameters():
        if param.requires_grad:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            pending.append((param, dist.all_reduce(param.grad, async_op=True)))
    for param, handle in pending:
        handle.wait()
        param.grad.div_(dist.get_world_size())
