"""The whole model in one object, pickled on the source and loaded by the others."""


def broadcast_model(model, src=0):
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    box = [None]
    if dist.get_rank() == src:
        box = [{name: tensor.detach() for name, tensor in tensors.items()}]
    dist.broadcast_object_list(box, src=src)
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(box[0][name])


def average_gradients(model):
    own = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    for name, param in model.named_parameters():
        if name in own:
            grads = [other[name] for other in everyone if other[name] is not None]
            param.grad = sum(grads, torch.zeros_like(param)) / len(everyone)
