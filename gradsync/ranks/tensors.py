"""Untrusted side: the tensors of a collective's call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

# What comes is written by copying, which raises a tensor's version as a change of the rank's does.
COPIED = {"all_reduce_coalesced", "reduce_scatter", "reduce_scatter_tensor"}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument, those in lists of lists too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def versioned(op: str, tensors: Any, others: Any) -> list[torch.Tensor]:
    """Return what a rank puts in, as far as its version changes only if the rank itself changes it.

    Args:
        op: the collective's name in `torch.distributed`.
        tensors: the argument with what is put in.
        others: all other arguments, what is to come among them.
    """
    if op in COPIED:
        return []
    written = {other.untyped_storage().data_ptr() for other in tensors_in(others) if _has(other)}
    return [
        tensor
        for tensor in tensors_in(tensors)
        if _is_whole(tensor) and tensor.untyped_storage().data_ptr() not in written
    ]


def _is_whole(tensor: torch.Tensor) -> bool:
    """Tell whether all of a tensor's memory is its own: parts of one memory change together."""
    if not _has(tensor) or tensor.is_inference():
        return False
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _has(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has memory of the usual kind."""
    return tensor.layout == torch.strided
