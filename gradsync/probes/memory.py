"""What a tensor holds that nobody has written to."""

from __future__ import annotations

import torch


def spoil_new_memory() -> None:
    """Have this process find NaN in new memory: zeros there, as there often are, are luck."""
    torch.use_deterministic_algorithms(True, warn_only=True)
