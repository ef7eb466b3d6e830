"""Untrusted side: start the default process group of a run."""

from __future__ import annotations

import torch.distributed as dist


def start_group(path: str, rank: int, world_size: int, backend: str = "gloo") -> None:
    """Meet the other ranks through a file: unlike a port, a parallel run can't take it."""
    store = dist.FileStore(path, world_size)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size)
