"""Groups of torch's DeviceMesh."""

from torch.distributed.device_mesh import init_device_mesh


def make_groups(data, tensor):
    if min(data, tensor) < 1 or data * tensor != dist.get_world_size():
        raise ValueError(f"{data} x {tensor}")
    mesh = init_device_mesh("cpu", (data, tensor), mesh_dim_names=("data", "tensor"))
    return mesh.get_group("data"), mesh.get_group("tensor")
