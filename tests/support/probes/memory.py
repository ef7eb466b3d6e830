"""Make the content of uninitialised tensors visible."""

from __future__ import annotations

import torch


def spoil_new_memory() -> None:
    """Fill new memory with NaN in this process; without this, it often contains zeros."""
    torch.set_deterministic_debug_mode("warn")  # the other function for this imports the compiler
