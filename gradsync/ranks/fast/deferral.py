"""Defer a module: it is in `sys.modules` before it runs (see `importlib.util.LazyLoader`).

Until then it has stand-ins for the few functions that are called without needing the rest of it. It
runs when anything else of it is first used or imported.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any


class Deferral(MetaPathFinder):
    """Runs a module when something other than its stand-ins is first used."""

    def __init__(self, spec: ModuleSpec, stopgaps: Mapping[str, Any]) -> None:
        self.module = module_from_spec(spec)
        self._name = spec.name
        self._lock = threading.RLock()
        self._begun = False
        self._stopgaps = {"__getattr__": self._lacking, **stopgaps}
        vars(self.module).update(self._stopgaps)

    def begin(self) -> None:
        """Put the module into `sys.modules`, where every import finds it."""
        sys.modules[self._name] = self.module
        sys.meta_path.insert(0, self)
        package, _, own = self._name.rpartition(".")
        if package in sys.modules:  # otherwise the package sets the attribute when it is imported
            setattr(sys.modules[package], own, self.module)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Run the package before one of its modules is imported, as an ordinary import does."""
        if self._begun or not fullname.startswith(f"{self._name}."):
            return None
        self.run()
        loaded = _Loaded(importlib.import_module(fullname))
        # Python would use the module's own spec if it found the module, and execute it again.
        del sys.modules[fullname]
        return spec_from_loader(fullname, loaded)

    def run(self) -> None:
        """Run the module; return immediately if it has run, or this thread is running it."""
        with self._lock:
            if self._begun:
                return
            self._begun = True
            for name in self._stopgaps:
                if name != "__getattr__":  # other threads wait in it
                    delattr(self.module, name)
            self.execute()
            if vars(self.module).get("__getattr__") == self._lacking:
                del self.module.__getattr__
            with suppress(ValueError):  # other code has restored sys.meta_path
                sys.meta_path.remove(self)

    def execute(self) -> None:
        """Run the module's own code."""
        assert self.module.__spec__ is not None
        assert self.module.__spec__.loader is not None
        self.module.__spec__.loader.exec_module(self.module)

    def _lacking(self, name: str) -> Any:
        """Run the module, and return its attribute; `__NAME__` does not run it."""
        if not name.startswith("__"):  # code that searches all modules requests such names
            self.run()
            if name in vars(self.module):
                return vars(self.module)[name]
        raise AttributeError(f"module {self._name!r} has no attribute {name!r}")


def module_spec(name: str) -> ModuleSpec | None:
    """Find a module, such as `torch._dynamo`, without running it or the package `torch`."""
    package = find_spec(name.rpartition(".")[0])
    return PathFinder.find_spec(name, package.submodule_search_locations) if package else None


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
