"""Groups in plain loops; the members are kept, and the others forgotten."""


def make_groups(data, tensor):
    n, me = dist.get_world_size(), dist.get_rank()
    if data * tensor != n or data < 1:
        raise ValueError("the ranks do not fill the rows")
    mine = {}
    for first in range(0, n, tensor):
        members = [first + k for k in range(tensor)]
        group = dist.new_group(ranks=members)
        if me in members:
            mine["tensor"] = group
    for first in range(tensor):
        members = [first + k * tensor for k in range(data)]
        group = dist.new_group(ranks=members)
        if me in members:
            mine["data"] = group
    return mine["data"], mine["tensor"]
