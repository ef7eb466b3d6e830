"""A function that has the right lines of `phase2/codes.toml`."""

import torch.distributed as dist


def load_full_linear(layer, weight, bias):
    rank, n = dist.get_rank(), dist.get_world_size()
    dim = 0 if len(layer.weight) < len(weight) else 1
    layer.weight.detach().copy_(weight.chunk(n, dim)[rank])
    if layer.bias is not None and bias is not None:
        part = bias.chunk(n)[rank] if dim == 0 else bias
        layer.bias.detach().copy_(part)
