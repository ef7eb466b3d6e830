"""Torch's own classes, which do an exercise by themselves, kept from doing it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn


class ReadyMade(NamedTuple):
    module: str
    name: str
    method: str  # by which it does the work; to make one is another matter


DDP = ReadyMade("torch.nn.parallel.distributed", "DistributedDataParallel", "forward")
ZERO = ReadyMade(
    "torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer", "step"
)


class ForbiddenShortcut(Exception):  # noqa: N818 - what a learner did, by the name of its code
    """An exercise was left to the ready-made class; `ranks.exceptions` knows it by its name."""


@contextmanager
def without(ready: ReadyMade) -> Iterator[None]:
    """Let the class not do its work meanwhile; one that is not imported is let be."""
    kind = getattr(sys.modules.get(ready.module), ready.name, None)
    if kind is None:
        yield
        return
    original = getattr(kind, ready.method)

    def refuse(self: object, *_: Any, **__: Any) -> NoReturn:  # noqa: ARG001
        raise ForbiddenShortcut(
            f"torch's {ready.name} does all of this by itself, and to write it by hand is the "
            "exercise"
        )

    setattr(kind, ready.method, refuse)
    try:
        yield
    finally:
        setattr(kind, ready.method, original)
