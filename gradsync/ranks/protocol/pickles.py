"""Pickle a function and its inputs for the ranks, including the memory of tensors."""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from gradsync.ranks.protocol.user_files import is_users

if TYPE_CHECKING:
    import torch
    from torch.storage import TypedStorage

_at_work = threading.Lock()  # cloudpickle has one registry for all threads


UNPICKLABLE = (TypeError, ValueError, AttributeError, pickle.PicklingError)


def fits(value: Any) -> bool:
    """Return whether a value can be pickled."""
    try:
        pack(print, {"value": value})
    except UNPICKLABLE:
        return False
    return True


def pack(function: Callable[..., Any], inputs: dict[str, Any]) -> bytes:
    """Pickle both, with the helpers in the function's module.

    Raises:
        TypeError, ValueError, AttributeError, pickle.PicklingError: something can't be pickled.
    """
    pickled = io.BytesIO()
    with _at_work, _by_value(_home(function)):
        Pickler(pickled).dump((function, inputs))
    return pickled.getvalue()


class Pickler(cloudpickle.Pickler):  # type: ignore[misc] # it has no types
    """cloudpickle's pickler, but it keeps file names, and pickles tensors faster than torch."""

    def __init__(self, file: io.BytesIO) -> None:
        reducers: dict[type, Callable[[Any], Any]] = {CodeType: _reduce_code}
        if torch := sys.modules.get("torch"):
            reducers[torch.storage.TypedStorage] = _reduce_storage
            reducers[torch.UntypedStorage] = _reduce_memory
        self.dispatch_table = ChainMap(reducers, cloudpickle.Pickler.dispatch_table)
        super().__init__(file)


def _reduce_code(code: CodeType) -> Any:
    """Keep the file's name, which cloudpickle 3.1.3 replaces: failures name lines of the file."""
    make, parts = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in parts)


def _reduce_storage(storage: TypedStorage) -> Any:
    # The public method warns that TypedStorage is deprecated, but torch itself still uses it.
    memory = storage._untyped_storage
    if memory.device.type != "cpu":
        return storage.__reduce__()  # type: ignore[no-untyped-call]
    return restore_storage, (memory, storage.dtype)


def _reduce_memory(memory: torch.UntypedStorage) -> Any:
    import torch

    if memory.device.type != "cpu":
        return memory.__reduce__()  # type: ignore[no-untyped-call]
    return restore_memory, (torch.empty(0, dtype=torch.uint8).set_(memory).numpy().tobytes(),)


def restore_storage(memory: torch.UntypedStorage, dtype: torch.dtype) -> TypedStorage:
    """Return the storage from which torch rebuilds a tensor of this type."""
    from torch.storage import TypedStorage

    return TypedStorage(  # type: ignore[no-untyped-call]
        wrap_storage=memory, dtype=dtype, _internal=True
    )


def restore_memory(data: bytes) -> torch.UntypedStorage:
    """Return new memory with these bytes."""
    import torch

    if not data:
        return torch.UntypedStorage(0)  # type: ignore[no-untyped-call]
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone().untyped_storage()


def _home(function: Any) -> ModuleType | None:
    """Return the user's module that defines a function, or None."""
    while isinstance(function, functools.partial):
        function = function.func
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    return module if file is not None and is_users(file, ()) else None


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Pickle the functions of the function's module by value.

    The ranks can't import a test module or a notebook, which may not be on their path.
    """
    known = module is None or module.__name__ in (
        "__main__",  # always pickled by value
        *cloudpickle.list_registry_pickle_by_value(),
    )
    if not known:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if not known:
            cloudpickle.unregister_pickle_by_value(module)
