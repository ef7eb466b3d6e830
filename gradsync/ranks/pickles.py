"""A function and its inputs as bytes, and the memory of tensors in them: what ranks unpickle."""

from __future__ import annotations

import functools
import io
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from gradsync.ranks.places import is_users

if TYPE_CHECKING:
    import torch
    from torch.storage import TypedStorage

Finder = Callable[[CodeType, Iterable[Any]], list[ModuleType]]

_at_work = threading.Lock()  # cloudpickle has one registry for all threads


def pack(function: Callable[..., Any], inputs: dict[str, Any]) -> bytes:
    """Pickle both, with what stands in the function's own module.

    Raises:
        TypeError, ValueError, AttributeError, pickle.PicklingError: something can't be pickled.
    """
    pickled = io.BytesIO()
    with _at_work, _by_value(_home(function)), _quick_finder():
        Pickler(pickled).dump((function, inputs))
    return pickled.getvalue()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
    """cloudpickle's; but torch's own way of pickling a tensor takes a rank milliseconds to read."""

    def __init__(self, file: io.BytesIO) -> None:
        if torch := sys.modules.get("torch"):
            reducers = {
                torch.storage.TypedStorage: _reduce_storage,
                torch.UntypedStorage: _reduce_memory,
            }
            self.dispatch_table = ChainMap(reducers, cloudpickle.Pickler.dispatch_table)
        super().__init__(file)


def _reduce_storage(storage: TypedStorage) -> Any:
    memory = storage._untyped_storage  # the public way to it warns of what torch itself still does
    if memory.device.type != "cpu":
        return storage.__reduce__()  # type: ignore[no-untyped-call]
    return restore_storage, (memory, storage.dtype)


def _reduce_memory(memory: torch.UntypedStorage) -> Any:
    import torch

    if memory.device.type != "cpu":
        return memory.__reduce__()  # type: ignore[no-untyped-call]
    return restore_memory, (torch.empty(0, dtype=torch.uint8).set_(memory).numpy().tobytes(),)


def restore_storage(memory: torch.UntypedStorage, dtype: torch.dtype) -> TypedStorage:
    """Return what torch rebuilds a tensor of this type from."""
    from torch.storage import TypedStorage

    return TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=memory, dtype=dtype, _internal=True
    )


def restore_memory(data: bytes) -> torch.UntypedStorage:
    """Return memory of its own that holds these bytes."""
    import torch

    if not data:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone().untyped_storage()


def _home(function: Any) -> ModuleType | None:
    """Return the module of the user's own that a function stands in."""
    while isinstance(function, functools.partial):
        function = function.func
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    return module if file is not None and is_users(file, ()) else None


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Have helpers that stand in the function's own module travel with it.

    The ranks can't import a test module, nor a notebook: it may not be on their path at all.
    """
    known = module is None or module.__name__ in (
        "__main__",  # always taken along
        *cloudpickle.list_registry_pickle_by_value(),
    )
    if not known:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if not known:
            cloudpickle.unregister_pickle_by_value(module)


@contextmanager
def _quick_finder() -> Iterator[None]:
    """Have cloudpickle go through sys.modules once for a function, not each time it is pickled.

    It looks for submodules that the function uses, among the thousands that torch has.
    """
    library = cloudpickle.cloudpickle
    slow: Finder | None = getattr(library, "_find_imported_submodules", None)
    if slow is None:  # another release, with another way
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
    return slow(code, modules)  # asked anew when more has been imported
