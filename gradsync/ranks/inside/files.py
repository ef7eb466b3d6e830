"""Import the files of a task, and substitutes for those that are missing or can't be imported."""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
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
    """Let `name` be the module at `path`, or without a path an empty one.

    All other names can be imported from it, too: they are classes that raise when they are called.
    """
    module = import_file(name, Path(path)) if path else ModuleType(name)
    vars(module)["__getattr__"] = partial(_unusable, f"{name.rpartition('.')[2]}.py")
    sys.modules[name] = module


def _unusable(file: str, name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_: Any, **__: Any) -> None:
        raise ImportError(f"{name} can't be used: {file} is missing or can't be imported")

    return type(name, (), {"__new__": refuse})
