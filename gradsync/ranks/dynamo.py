"""torch's compiler, put off until something asks for it.

Every optimizer imports `torch._dynamo`, and every process group has it forget a cache, though
nothing is compiled: it takes as long to import as all the rest of torch, and what it leaves in
memory makes every fork dearer. So it is put in `sys.modules` before it has run, as
`importlib.util.LazyLoader` does, and with the functions that are called where nothing is compiled.
Whoever wants any more of it, `torch.compile` or DDP, makes it run and finds all of it.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any

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
        deferral = _Deferral(spec)
        sys.modules[NAME] = deferral.module
        sys.meta_path.insert(0, deferral)


def forget() -> None:
    """Empty the cache that each start of a group would empty, at some cost, if it was not."""
    with suppress(KeyError, AttributeError):  # a torch without it
        sys.modules[NAME].trace_rules.clear_lru_cache()


class _Deferral(MetaPathFinder):
    """Has torch._dynamo run in its place, at the first import or use of what it does not have."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.module = module_from_spec(spec)
        self._lock = threading.RLock()
        self._begun = False
        self._disabled: list[Callable[..., Any]] = []
        self._stopgaps = {
            "__getattr__": self._lacking,
            "graph_break": lambda *_, **__: None,
            "disable": self._disable,
            RULES: _Rules(f"{NAME}.{RULES}"),
        }
        vars(self.module).update(self._stopgaps)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Have the package run before a module of it is imported, as any import would."""
        if self._begun or not fullname.startswith(f"{NAME}."):
            return None
        self.run()
        return spec_from_loader(fullname, _Loaded(importlib.import_module(fullname)))

    def run(self) -> None:
        """Do what the import put off; at once where it is done, or this thread is about it."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
            for name in self._stopgaps:
                if name != "__getattr__":  # for which other threads wait
                    delattr(self.module, name)
            _execute(self.module)
            for function in self._disabled:  # by the real one, when they are next called
                vars(function).pop(DISABLED, None)
            if vars(self.module).get("__getattr__") == self._lacking:
                del self.module.__getattr__
            with suppress(ValueError):  # somebody else has put it back to what it was
                sys.meta_path.remove(self)

    def _lacking(self, name: str) -> Any:
        """Return what the module lacks so far."""
        if not name.startswith("__"):  # of which every module is asked, by who looks through all
            self.run()
            if name in vars(self.module):
                return vars(self.module)[name]
        raise AttributeError(f"module {NAME!r} has no attribute {name!r}")

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


class _Loaded(Loader):
    """Hands to an import what another has just loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _execute(module: ModuleType) -> None:
    """Run a module, which makes the folder of its cache: that one is gone at once."""
    assert module.__spec__ is not None
    assert module.__spec__.loader is not None
    former = os.environ.get(CACHE)
    with own_folder() as folder:
        os.environ[CACHE] = str(folder)
        try:
            module.__spec__.loader.exec_module(module)
        finally:
            del os.environ[CACHE]
            if former is not None:
                os.environ[CACHE] = former
