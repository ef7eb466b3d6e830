"""What a tensor holds that nobody has written to."""

from __future__ import annotations

import torch


def spoil_new_memory() -> None:
    """Have this process find NaN in new memory: zeros there, as there often are, are luck."""
    torch.set_deterministic_debug_mode("warn")  # unlike its twin it imports no compiler
