"""Defer torch's Python kernels for the meta device, in a process that does not use this device.

Their import takes a third of the time of importing torch. Before they are registered, some
operators on meta tensors raise NotImplementedError. So never defer them where code of a learner
runs: on ranks, or in a notebook's kernel.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec

from gradsync.ranks.deferral import Deferral

NAME = "torch._meta_registrations"


def put_off() -> None:
    """Defer these kernels until a function of their module is used, unless torch is imported."""
    torch = find_spec("torch")
    if "torch" in sys.modules or torch is None:
        return
    spec = PathFinder.find_spec(NAME, torch.submodule_search_locations)
    if spec is not None:
        Deferral(spec, {}).begin()
