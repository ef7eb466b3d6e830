"""The program of the warm process: import all that ranks use, then fork ranks on request.

No other module imports both sides: `host` is trusted, and `inside` runs in the forked ranks.
"""

from __future__ import annotations

import gc

gc.disable()  # until all modules are imported: collecting is slow, and there is no garbage yet

import importlib
import linecache
import os
import socket
import sys
from contextlib import suppress
from typing import NoReturn

from gradsync.ranks.fast import dynamo
from gradsync.ranks.host.launchers.warm_process import WarmProcess
from gradsync.ranks.inside import watch, worker  # these import torch

# Modules that ranks use, imported here so that every fork has them.
WANTED_SOON = (
    "gradsync.ranks.protocol.pickles",
    "numpy.random",
    "torch.optim",
    "torch.profiler._cupti_monitor",
    "torch.utils.data",
)
# torch.manual_seed formats the stack of each call, and reads the source of these files for it.
READ_SOON = ("torch.random", "torch.cuda", "torch.cuda.random", "torch.xpu", "torch.xpu.random")


def start(descriptor: int) -> NoReturn:
    """Serve the launcher at the other end of this socket until it ends."""
    dynamo.defer()
    _import_what_ranks_use()
    gc.freeze()  # keeps the pages of all modules shared with every rank
    gc.enable()
    WarmProcess(socket.socket(fileno=descriptor), worker.main).serve()
    os._exit(0)


def _import_what_ranks_use() -> None:
    for name in WANTED_SOON:
        with suppress(
            ImportError
        ):  # some are private modules, which other versions of torch may lack
            importlib.import_module(name)
    watch.install()
    for name in READ_SOON:
        if name in sys.modules:
            linecache.getlines(sys.modules[name].__file__ or "")
