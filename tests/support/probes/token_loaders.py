"""Probes for token loaders: the batches of a pass, as plain data."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from support.probes.returned import WrongReturn, described, items_of

LENGTH = 3  # targets in a row
Batch = list[list[list[int]]]  # inputs and targets


def numbered(count: int) -> Tensor:
    """Return sequences whose tokens show their number: row i has 10 * i, 10 * i + 1, ..."""
    return 10 * torch.arange(count)[:, None] + torch.arange(LENGTH + 1)


def batches_of(loader: Iterable[Any], count: int | None = None) -> list[Batch]:
    """Return the batches of a pass, or only the first `count` of them.

    Raises:
        WrongReturn: a batch is not a pair of tensors, or the pass does not end.
    """
    found = items_of(loader, "a pass over the loader") if count is None else islice(loader, count)
    return [_plain(batch) for batch in found]


def _plain(batch: Any) -> Batch:
    if (
        not isinstance(batch, (tuple, list))
        or len(batch) != 2
        or not all(isinstance(part, Tensor) for part in batch)
    ):
        raise WrongReturn(
            f"the loader yields {described(batch)}. It must yield pairs of tensors, "
            "(inputs, targets)."
        )
    return [part.tolist() for part in batch]
