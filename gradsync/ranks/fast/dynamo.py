"""Defer torch's compiler until something uses it.

Every optimizer imports `torch._dynamo`, every process group clears one of its caches, and DDP asks
how it would be compiled, though nothing is compiled. Its import takes as long as the rest of torch,
and its memory makes each fork slower. So the module is in `sys.modules` before it runs, with
stand-ins for the few functions that are called without needing the rest. It runs when anything else
of it is first used or imported, such as by `torch.compile`. `importlib.util.LazyLoader` would run
it at the first of these.
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

from gradsync.ranks.fast import uses
from gradsync.temporary_folders import own_folder

NAME = "torch._dynamo"
PACKAGE, _, OWN_NAME = NAME.rpartition(".")
CACHE = "TORCHINDUCTOR_CACHE_DIR"
DISABLED = "__dynamo_disable"  # where `torch._compile` caches the result of `disable`


def defer() -> None:
    """Defer torch._dynamo until it is needed, unless it has run."""
    if NAME in sys.modules or not uses("dynamo") or not (package := find_spec(PACKAGE)):
        return
    if spec := PathFinder.find_spec(NAME, package.submodule_search_locations):
        _Compiler(spec).begin()


def forget() -> None:
    """Empty a cache now; otherwise each start of a process group would have to empty it."""
    with suppress(KeyError, AttributeError):  # this torch has no such cache
        sys.modules[NAME].trace_rules.clear_lru_cache()


class _Compiler(MetaPathFinder):
    """Runs the module when something other than its stand-ins is first used."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._module = module_from_spec(spec)
        self._lock = threading.RLock()
        self._begun = False
        self._disabled: list[Callable[..., Any]] = []
        self._standins = {
            "graph_break": lambda *_, **__: None,
            "disable": self._disable,
            "trace_rules": _Part("trace_rules", clear_lru_cache=lambda: None),
            # The default of `torch._dynamo.config`, which only code that imports it can change.
            "utils": _Part("utils", get_optimize_ddp_mode=lambda: "ddp_optimizer"),
        }
        vars(self._module).update(self._standins, __getattr__=self._lacking)

    def begin(self) -> None:
        """Put the module into `sys.modules`, where every import finds it."""
        sys.modules[NAME] = self._module
        sys.meta_path.insert(0, self)
        if PACKAGE in sys.modules:  # otherwise torch sets the attribute when it is imported
            setattr(sys.modules[PACKAGE], OWN_NAME, self._module)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Run the package before one of its modules is imported, as an ordinary import does."""
        if self._begun or not fullname.startswith(f"{NAME}."):
            return None
        self._run()
        loaded = _Loaded(importlib.import_module(fullname))
        # Python would use the module's own spec if it found the module, and execute it again.
        del sys.modules[fullname]
        return spec_from_loader(fullname, loaded)

    def _run(self) -> None:
        """Run the module; return immediately if it has run, or this thread is running it."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
            for name in self._standins:
                delattr(self._module, name)
            self._execute()
            if vars(self._module).get("__getattr__") == self._lacking:
                del self._module.__getattr__  # other threads have waited in it
            for function in self._disabled:  # `torch._compile` calls the real `disable` next time
                vars(function).pop(DISABLED, None)
            with suppress(ValueError):  # other code has restored sys.meta_path
                sys.meta_path.remove(self)

    def _execute(self) -> None:
        """Run its code with a temporary folder for its cache, which its import creates."""
        assert self._module.__spec__ is not None
        assert self._module.__spec__.loader is not None
        previous = os.environ.get(CACHE)
        with own_folder() as folder:
            os.environ[CACHE] = str(folder)
            try:
                self._module.__spec__.loader.exec_module(self._module)
            finally:
                del os.environ[CACHE]
                if previous is not None:
                    os.environ[CACHE] = previous

    def _lacking(self, name: str) -> Any:
        """Run the module, and return its attribute; `__NAME__` does not run it."""
        if not name.startswith("__"):  # code that searches all modules requests such names
            self._run()
            if name in vars(self._module):
                return vars(self._module)[name]
        raise AttributeError(f"module {NAME!r} has no attribute {name!r}")

    def _disable(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return torch's own functions unchanged: they are never compiled."""
        if options != {"wrapping": False}:  # another caller, which may compile
            self._run()
            return self._module.disable(function, *arguments, **options)
        self._disabled.append(function)
        return function


class _Part(ModuleType):
    """Replaces one of its modules; loads the real one if more of it is used than given here."""

    def __init__(self, name: str, **functions: Callable[[], object]) -> None:
        super().__init__(f"{NAME}.{name}")
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


class _Loaded(Loader):
    """Gives an import a module that is already loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        with suppress(AttributeError):  # a module that does not allow this still has its own spec
            module.__spec__ = self._spec
