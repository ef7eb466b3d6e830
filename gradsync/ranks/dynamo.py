"""torch's compiler, put off until something asks for it.

Every optimizer imports `torch._dynamo`, and every process group has it forget a cache, though
nothing is compiled: it takes as long to import as all the rest of torch, and what it leaves in
memory makes every fork dearer. Whoever wants any more of it, `torch.compile` or DDP, makes it run
and finds all of it.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from gradsync.ranks.deferral import Deferral
from gradsync.workplace import own_folder

NAME = "torch._dynamo"
RULES = "trace_rules"  # a module of it
CACHE = "TORCHINDUCTOR_CACHE_DIR"
DISABLED = "__dynamo_disable"  # where `torch._compile` keeps what `disable` made of a function


def put_off() -> None:
    """Keep torch._dynamo from running until it is needed, unless it has run."""
    torch = find_spec("torch")
    if NAME in sys.modules or torch is None:
        return
    spec = PathFinder.find_spec(NAME, torch.submodule_search_locations)
    if spec is not None:
        _Compiler(spec).begin()


def forget() -> None:
    """Empty the cache that each start of a group would empty, at some cost, if it was not."""
    with suppress(KeyError, AttributeError):  # a torch without it
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
        """Run it, which makes the folder of its cache: that one is gone at once."""
        former = os.environ.get(CACHE)
        with own_folder() as folder:
            os.environ[CACHE] = str(folder)
            try:
                super().execute()
            finally:
                del os.environ[CACHE]
                if former is not None:
                    os.environ[CACHE] = former
        for function in self._disabled:  # by the real one, when they are next called
            vars(function).pop(DISABLED, None)

    def _disable(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return a function as it is, if torch asks for one of its own: nothing compiles it."""
        if options != {"wrapping": False}:  # somebody else asks, who compiles
            self.run()
            return self.module.disable(function, *arguments, **options)
        self._disabled.append(function)
        return function


class _Rules(ModuleType):
    """Has nothing to forget; is the real one for whoever asks for more."""

    def clear_lru_cache(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)
