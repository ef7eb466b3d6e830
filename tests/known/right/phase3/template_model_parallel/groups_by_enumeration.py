"""Groups by torch's own enumeration, the columns first."""


def make_groups(data, tensor):
    world = dist.get_world_size()
    if data <= 0 or tensor <= 0 or data * tensor != world:
        raise ValueError("data * tensor must be the world size")
    columns = [list(range(c, world, tensor)) for c in range(tensor)]
    rows = [list(range(r * tensor, (r + 1) * tensor)) for r in range(data)]
    data_group, _ = dist.new_subgroups_by_enumeration(columns)
    tensor_group, _ = dist.new_subgroups_by_enumeration(rows)
    return data_group, tensor_group
