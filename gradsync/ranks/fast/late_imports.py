"""Import modules in the warm process that ranks of an earlier run have imported.

Some parts of torch take up to two seconds to import. Few programs need them, but these programs
need them on every rank. Ranks are not trusted, so they can request only the modules listed here.
"""

from __future__ import annotations

import importlib
import mmap
import sys
from contextlib import suppress

from gradsync.ranks.fast import uses

LATE = (
    "torch._dynamo.eval_frame",  # imported if torch._dynamo has run: see dynamo.py
    "torch.fx.experimental.symbolic_shapes",  # by a `backward` that receives a gradient
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.tensor",
)


class LateImports:
    """A page of shared memory in which the ranks of one run report their late imports."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, len(LATE))  # shared with every fork

    def report(self) -> None:
        """Report which of the modules this rank has imported."""
        for index, name in enumerate(LATE):
            if name in sys.modules:
                self._page[index] = True

    def catch_up(self) -> bool:
        """Import modules that a rank has and this process lacks; return whether there were any."""
        if not uses("late_imports"):
            return False
        imported = (name for index, name in enumerate(LATE) if self._page[index])
        lacking = [name for name in imported if name not in sys.modules]
        for name in lacking:
            with suppress(Exception):  # then ranks import it themselves
                importlib.import_module(name)
        return bool(lacking)
