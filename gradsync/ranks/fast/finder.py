"""Make cloudpickle search the loaded modules once per function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

import cloudpickle

from gradsync.ranks.fast import uses

Finder = Callable[[CodeType, Iterable[Any]], list[ModuleType]]


@contextmanager
def quick_finder() -> Iterator[None]:
    """Make cloudpickle search sys.modules once per function, not each time it is pickled.

    It looks for submodules that the function uses, among torch's thousands of modules.
    """
    library = cloudpickle.cloudpickle
    slow: Finder | None = getattr(library, "_find_imported_submodules", None)
    if slow is None or not uses("finder"):  # None: this release works differently
        yield
        return
    library._find_imported_submodules = functools.partial(_find_once, slow)
    try:
        yield
    finally:
        library._find_imported_submodules = slow


def _find_once(slow: Finder, code: CodeType, values: Iterable[Any]) -> list[ModuleType]:
    modules = tuple(value for value in values if isinstance(value, ModuleType))
    return _find(slow, code, modules, len(sys.modules))


@functools.lru_cache(maxsize=4096)
def _find(
    slow: Finder, code: CodeType, modules: tuple[ModuleType, ...], _count: int
) -> list[ModuleType]:
    return slow(code, modules)  # the number of modules is part of the cache key
