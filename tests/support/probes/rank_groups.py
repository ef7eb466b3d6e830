"""Groups of ranks that a submission creates."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from support.probes import raised
from support.probes.returned import WrongReturn, described


def probe_groups(rank: int, model_parallel: Any, data: int, tensor: int) -> dict[str, Any]:
    """Return the members of this rank's groups, and the sum of their ranks by a collective."""
    returned = model_parallel.make_groups(data, tensor)
    if not isinstance(returned, (tuple, list)) or len(returned) != 2:
        raise WrongReturn(
            f"make_groups returns {described(returned)}. It must return two groups, "
            "(data_group, tensor_group)."
        )
    members: dict[str, list[int]] = {}
    for name, group in zip(("data", "tensor"), returned, strict=True):
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            members[name] = []
        elif isinstance(group, (dist.ProcessGroup, type(None))):
            members[name] = dist.get_process_group_ranks(group)
        else:
            raise WrongReturn(f"The {name} group is {described(group)}. It must be a group.")
    row, column = divmod(rank, tensor)
    right = members == {
        "data": [line * tensor + column for line in range(data)],
        "tensor": [row * tensor + place for place in range(tensor)],
    }
    all_right = torch.tensor(int(right))
    dist.all_reduce(all_right, op=dist.ReduceOp.MIN)
    kept = {name: {"members": members[name], "sum": 0.0} for name in members}
    for name, group in zip(members, returned, strict=True):
        if all_right:  # else some rank would not take part
            number = torch.tensor(1.0 + rank)
            dist.all_reduce(number, group=group)
            kept[name]["sum"] = number.item()
    return kept


def refusals(model_parallel: Any, shapes: list[tuple[int, int]]) -> list[str | None]:
    """Return the error of `make_groups` for each shape, or None: "ValueError: ..."."""
    make_groups, errors = model_parallel.make_groups, []
    for shape in shapes:
        error = raised(partial(make_groups, *shape))
        kind = ValueError if isinstance(error, ValueError) else type(error)
        errors.append(f"{kind.__name__}: {error}" if error else None)
    return errors
