"""A module that is put off: in `sys.modules` before it has run (see `importlib.util.LazyLoader`).

From the start it has the functions that are called where nothing more of it is needed. It runs when
anything else of it is first used or imported.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType
from typing import Any


class Deferral(MetaPathFinder):
    """Has a module run in its place, once something asks for more than stands in for it."""

    def __init__(self, spec: ModuleSpec, stopgaps: Mapping[str, Any]) -> None:
        self.module = module_from_spec(spec)
        self._name = spec.name
        self._lock = threading.RLock()
        self._begun = False
        self._stopgaps = {"__getattr__": self._lacking, **stopgaps}
        vars(self.module).update(self._stopgaps)

    def begin(self) -> None:
        """Put the module where every import finds it."""
        sys.modules[self._name] = self.module
        sys.meta_path.insert(0, self)
        package, _, own = self._name.rpartition(".")
        if package in sys.modules:  # else whoever imports that asks there for it
            setattr(sys.modules[package], own, self.module)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Have a package run before a module of it is imported, as any import would."""
        if self._begun or not fullname.startswith(f"{self._name}."):
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
            self.execute()
            if vars(self.module).get("__getattr__") == self._lacking:
                del self.module.__getattr__
            with suppress(ValueError):  # somebody else has put it back to what it was
                sys.meta_path.remove(self)

    def execute(self) -> None:
        """Run the module's own code."""
        assert self.module.__spec__ is not None
        assert self.module.__spec__.loader is not None
        self.module.__spec__.loader.exec_module(self.module)

    def _lacking(self, name: str) -> Any:
        """Return what the module lacks so far."""
        if not name.startswith("__"):  # of which every module is asked, by who looks through all
            self.run()
            if name in vars(self.module):
                return vars(self.module)[name]
        raise AttributeError(f"module {self._name!r} has no attribute {name!r}")


class _Loaded(Loader):
    """Hands to an import what another has just loaded."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:  # noqa: ARG002
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
