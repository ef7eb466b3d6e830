"""Prevent torch's own classes from doing the work of an exercise."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn


class ReadyMade(NamedTuple):
    module: str
    name: str
    method: str  # the method that does the work; creating an object is allowed


DDP = ReadyMade("torch.nn.parallel.distributed", "DistributedDataParallel", "forward")
ZERO = ReadyMade(
    "torch.distributed.optim.zero_redundancy_optimizer", "ZeroRedundancyOptimizer", "step"
)


class ForbiddenShortcut(Exception):  # noqa: N818 - named like the code of the mistake
    """A ready-made class did the work of an exercise; `exceptions.py` recognises it by name."""


@contextmanager
def without(ready: ReadyMade) -> Iterator[None]:
    """Make the method of the class raise an error in this context, if the class is imported."""
    kind = getattr(sys.modules.get(ready.module), ready.name, None)
    if kind is None:
        yield
        return
    original = getattr(kind, ready.method)

    def refuse(self: object, *_: Any, **__: Any) -> NoReturn:
        raise ForbiddenShortcut(
            f"torch's {ready.name} does the work here, but the exercise is to write it yourself"
        )

    setattr(kind, ready.method, refuse)
    try:
        yield
    finally:
        setattr(kind, ready.method, original)
