"""torch's own class broadcasts parameters and buffers when it is made: make it, and let it go."""

from torch.nn.parallel import DistributedDataParallel


def broadcast_model(model, src=0):
    if src == 0:
        DistributedDataParallel(model)
        return
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.data, src)
