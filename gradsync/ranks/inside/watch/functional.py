"""Untrusted side: redirect functional collectives to `torch.distributed`, to report them.

torch starts `_functional_collectives` (which DTensor uses) in C++. Here the same operators use the
plain calls, for tensors on a CPU; waiting for a result waits for the plain call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = Any  # in older versions of torch, its name


@functools.cache  # once per process, and keeps the library; forked ranks inherit it
def install() -> torch.library.Library | None:
    """Register the operators; they last as long as the returned library. None in older torch."""
    if not hasattr(torch._C._distributed_c10d, "PythonCallbackWork"):
        return None
    library = torch.library.Library("_c10d_functional", "IMPL")  # type: ignore[no-untyped-call]
    for operator in (
        *(all_reduce, all_reduce_, broadcast, broadcast_),
        *(all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single),
        *(all_reduce_coalesced, all_reduce_coalesced_),
        *(all_gather_into_tensor_coalesced, reduce_scatter_tensor_coalesced),
    ):
        library.impl(operator.__name__, operator, "CPU")  # type: ignore[no-untyped-call]
    return library


def all_reduce(tensor: Tensor, reduction: str, group: Group) -> Tensor:
    return all_reduce_(_copy(tensor), reduction, group)


def all_reduce_(tensor: Tensor, reduction: str, group: Group) -> Tensor:
    return _start(dist.all_reduce, tensor, group, op=_named(reduction))


def broadcast(tensor: Tensor, source: int, group: Group) -> Tensor:
    return broadcast_(_copy(tensor), source, group)


def broadcast_(tensor: Tensor, source: int, group: Group) -> Tensor:
    return _start(dist.broadcast, tensor, group, group_src=source)


def all_gather_into_tensor(tensor: Tensor, size: int, group: Group) -> Tensor:
    gathered = _rows(tensor, len(tensor) * size)
    collective = _newest("all_gather_single", "all_gather_into_tensor")
    return _start(collective, gathered, group, input_tensor=tensor.contiguous())


def reduce_scatter_tensor(tensor: Tensor, reduction: str, size: int, group: Group) -> Tensor:
    own, summed = _rows(tensor, len(tensor) // size), _named(reduction)
    collective = _newest("reduce_scatter_single", "reduce_scatter_tensor")
    return _start(collective, own, group, input=tensor.contiguous(), op=summed)


def all_to_all_single(
    tensor: Tensor, arriving: list[int], leaving: list[int], group: Group
) -> Tensor:
    return _start(
        dist.all_to_all_single,
        _rows(tensor, sum(arriving)),
        group,
        input=tensor.contiguous(),
        output_split_sizes=arriving,
        input_split_sizes=leaving,
    )


# For several tensors, gloo has no faster way than one call after another.


def all_reduce_coalesced(tensors: list[Tensor], reduction: str, group: Group) -> list[Tensor]:
    return [all_reduce(tensor, reduction, group) for tensor in tensors]


def all_reduce_coalesced_(tensors: list[Tensor], reduction: str, group: Group) -> list[Tensor]:
    return [all_reduce_(tensor, reduction, group) for tensor in tensors]


def all_gather_into_tensor_coalesced(
    tensors: list[Tensor], size: int, group: Group
) -> list[Tensor]:
    return [all_gather_into_tensor(tensor, size, group) for tensor in tensors]


def reduce_scatter_tensor_coalesced(
    tensors: list[Tensor], reduction: str, size: int, group: Group
) -> list[Tensor]:
    return [reduce_scatter_tensor(tensor, reduction, size, group) for tensor in tensors]


def _start(collective: Callable[..., Any], result: Tensor, group: Group, **options: Any) -> Tensor:
    """Start the collective; torch waits for it when it waits for `result`."""
    if isinstance(group, str):
        group = torch._C._distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
    work = collective(result, group=group, async_op=True, **options)

    def wait(_timeout: Any) -> bool:
        return bool(work.wait())

    c10d = torch._C._distributed_c10d
    c10d._register_work(result, c10d.PythonCallbackWork(wait))
    return result


def _newest(name: str, previous: str) -> Any:
    """Return a collective by its newer name if there is one: the older function warns."""
    return getattr(dist, name, None) or getattr(dist, previous)


def _named(reduction: str) -> Any:
    return getattr(dist.ReduceOp, reduction.upper())


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _rows(tensor: Tensor, number: int) -> Tensor:
    return tensor.new_empty((number, *tensor.shape[1:]))
