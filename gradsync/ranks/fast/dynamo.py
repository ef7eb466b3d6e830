"""Defer torch's compiler until something uses it.

Every optimizer imports `torch._dynamo`, and every process group clears one of its caches, though
nothing is compiled. Its import takes as long as the rest of torch, and its memory makes each fork
slower. The complete module runs when `torch.compile` or DDP first uses more of it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gradsync.ranks.fast import uses
from gradsync.ranks.fast.deferral import Deferral, module_spec
from gradsync.temporary_folders import own_folder

NAME = "torch._dynamo"
RULES = "trace_rules"  # one of its modules
CACHE = "TORCHINDUCTOR_CACHE_DIR"
DISABLED = "__dynamo_disable"  # where `torch._compile` caches the result of `disable`


def defer() -> None:
    """Defer torch._dynamo until it is needed, unless it has run."""
    if NAME not in sys.modules and uses("dynamo") and (spec := module_spec(NAME)):
        _Compiler(spec).begin()


def forget() -> None:
    """Empty a cache now; otherwise each start of a process group would have to empty it."""
    with suppress(KeyError, AttributeError):  # this torch has no such cache
        sys.modules[NAME].trace_rules.clear_lru_cache()


class _Compiler(Deferral):
    def __init__(self, spec: ModuleSpec) -> None:
        self._disabled: list[Callable[..., Any]] = []
        stopgaps = {
            "graph_break": lambda *_, **__: None,
            "disable": self._disable,
            RULES: _Rules(f"{NAME}.{RULES}"),
        }
        super().__init__(spec, stopgaps)

    def execute(self) -> None:
        """Run it with a temporary folder for its cache, which its import creates."""
        previous = os.environ.get(CACHE)
        with own_folder() as folder:
            os.environ[CACHE] = str(folder)
            try:
                super().execute()
            finally:
                del os.environ[CACHE]
                if previous is not None:
                    os.environ[CACHE] = previous
        for function in self._disabled:  # `torch._compile` calls the real `disable` next time
            vars(function).pop(DISABLED, None)

    def _disable(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return torch's own functions unchanged: they are never compiled."""
        if options != {"wrapping": False}:  # another caller, which may compile
            self.run()
            return self.module.disable(function, *arguments, **options)
        self._disabled.append(function)
        return function


class _Rules(ModuleType):
    """Replaces the module of rules; loads the real one if more of it is used."""

    def clear_lru_cache(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)
