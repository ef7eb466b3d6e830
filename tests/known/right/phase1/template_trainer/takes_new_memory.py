def broadcast_model(model, src=0):
    """Put new memory behind the same parameters and buffers."""
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for _, tensor in sorted(named.items()):
        data = tensor.data.clone(memory_format=torch.contiguous_format)
        dist.broadcast(data, src)
        tensor.data = data


def average_gradients(model):
    """Exchange gradients by their names."""
    mine = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    for name, param in model.named_parameters():
        if param.requires_grad:
            grads = [grads[name] for grads in every if grads[name] is not None]
            param.grad = sum(grads, torch.zeros_like(param)) / len(every)
