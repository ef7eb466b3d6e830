"""What ranks import late, and the warm process then imports for all that follow.

Some parts of torch take up to two seconds and are wanted by few programs, but there on every rank.
A rank that is not trusted can ask for these alone.
"""

from __future__ import annotations

import importlib
import mmap
import sys
from contextlib import suppress

LATE = (
    "torch._dynamo.eval_frame",  # there once torch._dynamo has run: see gradsync.ranks.dynamo
    "torch.utils._sympy.functions",  # once symbolic shapes have run: see gradsync.ranks.symbolic
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.tensor",
)


class LateImports:
    """A page of memory for the ranks of one run, in which they say what they have imported."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, len(LATE))  # shared with every fork

    def tell(self) -> None:
        """Say, on a rank, what it has imported."""
        for index, name in enumerate(LATE):
            if name in sys.modules:
                self._page[index] = True

    def catch_up(self) -> bool:
        """Import what a rank has and this process lacks; return whether there was any."""
        told = [name for index, name in enumerate(LATE) if self._page[index]]
        lacking = [name for name in told if name not in sys.modules]
        for name in lacking:
            with suppress(Exception):  # ranks have it for themselves
                importlib.import_module(name)
        return bool(lacking)
