"""A mesh built from a tensor of ranks; its groups belong to its named dimensions."""

from torch.distributed.device_mesh import DeviceMesh


def make_groups(data, tensor):
    ranks = dist.get_world_size()
    if ranks != data * tensor:
        raise ValueError(f"{data} * {tensor} != {ranks}")
    mesh = DeviceMesh("cpu", torch.arange(ranks).view(data, tensor), mesh_dim_names=("d", "t"))
    return mesh["d"].get_group(), mesh["t"].get_group()
