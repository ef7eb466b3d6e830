"""Random numbers that come out the same wherever they are drawn."""

from __future__ import annotations

import torch


def seed_weights(seed: int) -> None:
    """Have torch draw the same weights from here on, on the CPU.

    As `torch.manual_seed` does, which also prepares the seeds of GPUs: where there are none it
    formats the stack of every call for that, and makes a hundred small models slow to build.
    """
    torch.default_generator.manual_seed(seed)
