"""Trusted: whether this machine has the GPUs that a backend needs."""

from __future__ import annotations


def lacking(backend: str, world_size: int, launcher: str | None = None) -> str | None:
    """Return why a backend can't be used here, or None if it can."""
    if "nccl" not in backend:
        return None
    if launcher == "sandbox":
        return f"backend={backend!r} needs GPUs, and a sandbox has none: use another launcher"
    import torch  # only for this backend: the import takes a second

    count = torch.cuda.device_count()
    if count >= world_size:
        return None
    need = f"backend={backend!r} needs a GPU for each of {world_size} ranks"
    return f"{need}, and torch finds {count}"
