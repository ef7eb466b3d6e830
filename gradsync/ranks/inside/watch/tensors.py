"""Untrusted side: find the tensors in the arguments of a collective."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument, including those in nested lists."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def strides_of(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """Return the strides of these tensors, or nothing if all of them are contiguous."""
    if all(not _has(tensor) or tensor.is_contiguous() for tensor in tensors):
        return ()
    return tuple(tensor.stride() if _has(tensor) else () for tensor in tensors)


def with_own_versions(value: Any) -> Any:
    """Return an argument with tensors that share memory but have separate version counters.

    A backend may change a tensor in place, as gloo does to turn a sum into a mean. That must not
    look like a change by the rank.
    """
    if isinstance(value, torch.Tensor):
        return value.data if _can_be_watched(value) else value
    if isinstance(value, (list, tuple)):
        return [with_own_versions(item) for item in value]
    return value


def versioned(tensors: Any, others: Any) -> list[torch.Tensor]:
    """Return the tensors whose version changes only if the rank itself changes them.

    Args:
        tensors: the input argument, which the backend gets `with_own_versions`.
        others: all other arguments, with the tensors that the backend writes.
    """
    written = {other.untyped_storage().data_ptr() for other in tensors_in(others) if _has(other)}
    return [
        tensor
        for tensor in tensors_in(tensors)
        if _can_be_watched(tensor)
        and _is_whole(tensor)
        and tensor.untyped_storage().data_ptr() not in written
    ]


def exchanged(args: tuple[Any, ...], size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many elements an all_to_all receives from and sends to each of `size` ranks.

    Args:
        args: the arguments of ProcessGroup's method: the output and the input, as lists with a
            tensor for each rank, or as tensors, followed by each rank's number of rows in them.
        size: the number of ranks in the group.
    """
    arriving, leaving, *rest = args
    if not isinstance(arriving, torch.Tensor):
        return tuple(t.numel() for t in arriving), tuple(t.numel() for t in leaving)
    rows = [part if isinstance(part, (list, tuple)) else () for part in (*rest, (), ())]
    return _portions(arriving, rows[0], size), _portions(leaving, rows[1], size)


def gathered(outputs: Any, inputs: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many elements an all_gather receives from and sends to each rank."""
    arriving = tuple(tensor.numel() for tensor in tensors_in(outputs))
    (own,) = tensors_in(inputs)
    return arriving, (own.numel(),) * len(arriving)


def _portions(tensor: torch.Tensor, rows: Sequence[int], size: int) -> tuple[int, ...]:
    if not rows:
        return (tensor.numel() // size,) * size
    return tuple(number * math.prod(tensor.shape[1:]) for number in rows)


def _can_be_watched(tensor: torch.Tensor) -> bool:
    """Return whether the backend can be given another tensor with the same memory.

    If autograd records the call, it must see the original tensor, for which it warns or raises.
    """
    recorded = tensor.requires_grad and torch.is_grad_enabled()
    return _has(tensor) and not tensor.is_inference() and not recorded


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor uses all of its storage: views of one storage share a version."""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _has(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has ordinary dense memory."""
    return tensor.layout == torch.strided
