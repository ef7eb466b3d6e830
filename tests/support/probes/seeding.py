"""Random numbers that are the same on every machine."""

from __future__ import annotations

import torch


def seed_weights(seed: int) -> None:
    """Seed the random numbers that torch draws on the CPU.

    `torch.manual_seed` also prepares the seeds of GPUs. Without GPUs it formats the stack of every
    call for that, so building a hundred small models is slow.
    """
    torch.default_generator.manual_seed(seed)
