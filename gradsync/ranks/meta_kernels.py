"""Defer torch's Python kernels for the meta device.

Their import takes a third of the time of importing torch. They run before the first meta tensor is
created, and before another module of torch is imported, because many modules rely on them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from typing import Any

from gradsync.ranks.deferral import Deferral

NAME = "torch._meta_registrations"
CREATORS = ("empty.memory_format", "empty_strided")  # each meta tensor begins with one of these
# Modules that many ranks import, and that rely on no kernel.
UNRELATED = (
    "torch.distributed.algorithms",
    "torch.profiler.",
    "torch.utils.serialization",  # torch.save
)


def put_off() -> None:
    """Defer these kernels until they are needed, unless torch is imported."""
    torch = find_spec("torch")
    if "torch" in sys.modules or torch is None:
        return
    spec = PathFinder.find_spec(NAME, torch.submodule_search_locations)
    if spec is not None:
        _Kernels(spec).begin()


def watch() -> None:
    """From now on, run the kernels before the first meta tensor is created; torch is imported."""
    for finder in list(sys.meta_path):
        if isinstance(finder, _Kernels):
            finder.watch()


class _Kernels(Deferral):
    def __init__(self, spec: ModuleSpec) -> None:
        super().__init__(spec, {})
        self._library: Any = None  # replaces CREATORS while it exists

    def watch(self) -> None:
        from torch import library

        self._library = library.Library("aten", "IMPL", "Meta")  # type: ignore[no-untyped-call]
        for name in CREATORS:
            self._library.impl(name, self._runs_before(name))

    def needs(self, fullname: str) -> bool:
        """Tell whether a module is imported after torch, and may rely on the kernels."""
        torch = sys.modules.get("torch")
        return (
            fullname.startswith("torch.")
            and not fullname.startswith(UNRELATED)
            and torch is not None
            and not getattr(torch.__spec__, "_initializing", False)
        )

    def execute(self) -> None:
        self._library = None
        super().execute()

    def _runs_before(self, name: str) -> Callable[..., Any]:
        import torch

        packet, overload = name.partition(".")[::2]
        create = getattr(getattr(torch.ops.aten, packet), overload or "default")

        def run_and_create(*arguments: Any, **options: Any) -> Any:
            self.run()
            return create(*arguments, **options)

        return run_and_create
