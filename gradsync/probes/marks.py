"""Marks among a rank's collectives, for `gradsync.diagnose.buckets` to tell before from after."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def mark(group: Any, number: int) -> None:
    """Leave a mark, in a group of its own; every rank of it has to."""
    dist.all_reduce(torch.zeros(1, 1, number, dtype=torch.int8), group=group)
