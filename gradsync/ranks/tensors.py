"""Untrusted side: the tensors of a collective's call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an argument, those in lists of lists too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def with_own_versions(value: Any) -> Any:
    """Return an argument with tensors of the same memory whose versions are counted apart.

    A backend may change a tensor in place, as gloo does to turn a sum into a mean. That must not
    look like a change that the rank made.
    """
    if isinstance(value, torch.Tensor):
        return value.data if _can_be_watched(value) else value
    if isinstance(value, (list, tuple)):
        return [with_own_versions(item) for item in value]
    return value


def versioned(tensors: Any, others: Any) -> list[torch.Tensor]:
    """Return the tensors whose version changes only if the rank itself changes them.

    Args:
        tensors: the argument with what is put in; the backend got it `with_own_versions`.
        others: all other arguments, with the tensors that the backend fills.
    """
    written = {other.untyped_storage().data_ptr() for other in tensors_in(others) if _has(other)}
    return [
        tensor
        for tensor in tensors_in(tensors)
        if _can_be_watched(tensor)
        and _is_whole(tensor)
        and tensor.untyped_storage().data_ptr() not in written
    ]


def _can_be_watched(tensor: torch.Tensor) -> bool:
    """Tell whether the backend can work on another tensor of the same memory.

    Autograd must see the original where it records the call: it warns, or refuses.
    """
    recorded = tensor.requires_grad and torch.is_grad_enabled()
    return _has(tensor) and not tensor.is_inference() and not recorded


def _is_whole(tensor: torch.Tensor) -> bool:
    """Tell whether all of a tensor's memory is its own: parts of one memory change together."""
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _has(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has memory of the usual kind."""
    return tensor.layout == torch.strided
