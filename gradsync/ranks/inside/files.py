"""Import the files of a task, and substitutes for those that are missing or can't be imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def import_file(name: str, path: Path) -> ModuleType:
    """Import a file as the module `name`, wherever it is."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def substitute(name: str, path: str) -> None:
    """Import the file at `path` as `name`; without a path, a module of names that can't be used."""
    if path:
        import_file(name, Path(path))
    else:
        sys.modules[name] = _Unusable(name)


class _Unusable(ModuleType):
    """A module from which every name can be imported; a call of one raises."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*_: Any, **__: Any) -> None:
            file = f"{self.__name__.rpartition('.')[2]}.py"
            raise ImportError(f"{name} can't be used: {file} is missing or can't be imported")

        return type(name, (), {"__new__": refuse})
