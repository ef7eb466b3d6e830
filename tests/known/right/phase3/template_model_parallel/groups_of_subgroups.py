"""Rows by `new_subgroups`, columns by `new_group`, each with its own timeout and description."""


def make_groups(data, tensor):
    ranks, me = dist.get_world_size(), dist.get_rank()
    if data < 1 or tensor < 1 or data * tensor != ranks:
        raise ValueError(f"data={data} times tensor={tensor} is not the {ranks} ranks")
    row, _ = dist.new_subgroups(group_size=tensor)
    column = None
    for first in range(tensor):
        members = list(range(first, ranks, tensor))
        group = dist.new_group(members, group_desc=f"column {first}")
        if me in members:
            column = group
    return column, row
