"""Untrusted side: pdb on one rank, in the terminal of the process that started the ranks."""

from __future__ import annotations

import bdb
import os
import pdb
import sys
from collections.abc import Callable, Mapping
from typing import Any


def call_with(
    debugger: tuple[int, str] | None,
    rank: int,
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
) -> Any:
    """Call a function; on the rank of the debugger, a `breakpoint()` or an exception opens pdb."""
    if debugger is None:
        return function(**arguments)
    debugged, terminal = debugger
    if rank != debugged:
        sys.breakpointhook = lambda *_, **__: None
        return function(**arguments)
    descriptor = os.open(terminal, os.O_RDWR | os.O_NOCTTY)
    with os.fdopen(descriptor) as keys, os.fdopen(os.dup(descriptor), "w") as screen:
        debugging = pdb.Pdb(stdin=keys, stdout=screen)
        debugging.prompt = f"(rank {rank}) "
        sys.breakpointhook = lambda *_, **__: debugging.set_trace(sys._getframe(1))
        try:
            return function(**arguments)
        except bdb.BdbQuit:
            raise RuntimeError("the debugger was quit") from None
        except Exception as error:
            print(f"rank {rank} raised {type(error).__name__}: {error}", file=screen)
            trace = error.__traceback__
            debugging.reset()
            debugging.interaction(None, trace.tb_next if trace else None)
            raise
