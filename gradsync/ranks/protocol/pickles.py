"""Pickle a function and its inputs for the ranks, including the memory of tensors.

Modules that ranks can't import are sent by value: the main program, the function's own module, and
modules that pytest has loaded. On a rank, each of them is one module, as under spawn: its functions
share their globals, and `pickle` finds its classes.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import threading
from collections import ChainMap, UserDict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import cloudpickle
from cloudpickle import cloudpickle as internals

from gradsync.ranks.protocol.user_files import is_users

if TYPE_CHECKING:
    import torch
    from torch.storage import TypedStorage

PYTEST_LOADER = "AssertionRewritingHook"  # of test modules and conftest.py
SEARCH = "_find_imported_submodules"  # in cloudpickle: tries all modules, for each function
_at_work = threading.Lock()  # cloudpickle has one registry for all threads
_libraries: dict[str, ModuleType] = {}  # modules that are never sent


UNPICKLABLE = (TypeError, ValueError, AttributeError, RuntimeError, pickle.PicklingError)


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
        TypeError, ValueError, AttributeError, RuntimeError, pickle.PicklingError: something can't
            be pickled. A lock or queue of multiprocessing raises RuntimeError.
    """
    pickled = io.BytesIO()
    with _at_work, _by_value(_sent_modules(function)):
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
        self._globals: dict[str, ModuleGlobals] = {}

    def reducer_override(self, obj: Any) -> Any:
        """Let a function or class that is pickled by value belong to its module on the rank."""
        reduced = super().reducer_override(obj)
        module = sys.modules.get(getattr(obj, "__module__", None) or "")
        if not isinstance(reduced, tuple) or module is None:
            return reduced
        make, arguments, *rest = reduced
        is_own = vars(module).get(obj.__name__) is obj
        if isinstance(obj, FunctionType) and obj.__globals__ is vars(module):
            code, _, *others = arguments
            if is_own:
                rest[0][1]["__globals__"][obj.__name__] = obj
            return make, (code, self._globals_of(module), *others), *rest
        if isinstance(obj, type) and is_own:
            return define, (self._globals_of(module), obj.__name__, make, *arguments), *rest
        return reduced

    def _globals_of(self, module: ModuleType) -> ModuleGlobals:
        return self._globals.setdefault(module.__name__, ModuleGlobals(module))


class ModuleGlobals:
    """The globals of a module; on a rank they become those of the module with the same name."""

    def __init__(self, module: ModuleType) -> None:
        names = ("__name__", "__package__", "__path__", "__file__")
        self._names = {name: vars(module)[name] for name in names if name in vars(module)}

    def __reduce__(self) -> Any:
        return globals_of, (self._names,)


def globals_of(names: dict[str, Any]) -> dict[str, Any]:
    """Return the globals of a module that was sent to this rank, and list it in `sys.modules`."""
    name, file = names["__name__"], names.get("__file__")
    known = SentModule.all.get((name, file)) or sys.modules.get(name)
    if known is None or getattr(known, "__file__", None) != file:
        module = SentModule(name)
        vars(module).update(names)
        SentModule.all[name, file] = module
        if SentModule.listed and (known is None or name == "__main__"):
            sys.modules[name] = module
        known = module
    return vars(known)


def define(namespace: dict[str, Any], name: str, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return a new class that is defined in these globals."""
    namespace[name] = make(*arguments)
    return namespace[name]


class SentModule(ModuleType):
    """A module with the definitions that were sent; others are loaded from its file when used."""

    all: ClassVar[dict[tuple[str, str | None], SentModule]] = {}
    listed: ClassVar[bool] = True  # in sys.modules; a submission must not find a suite's modules

    def __getattr__(self, name: str) -> Any:
        file = vars(self).get("__file__")
        loads = self.__name__ != "__main__" and not name.startswith("__")
        if file and loads and not vars(self).get("__loaded__"):
            self.__loaded__ = True
            code = compile(Path(file).read_text(encoding="utf-8"), file, "exec")
            exec(code, vars(self), Additions(vars(self)))
            if name in vars(self):
                return vars(self)[name]
        raise AttributeError(
            f"module {self.__name__!r} has no attribute {name!r} on this rank: only what the "
            "function uses is sent to the ranks. Pass the object as an input.",
            name=name,
            obj=self,
        )


class Additions(UserDict[str, Any]):
    """The names that the code of a module defines; those that are already defined stay."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.data = names
        self._kept = set(names)

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._kept:
            self.data[name] = value


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


def _sent_modules(function: Any) -> list[ModuleType]:
    """Return the user's modules that are sent by value; the main program always is."""
    while isinstance(function, functools.partial):
        function = function.func
    home = getattr(function, "__module__", None)
    found = []
    for name, module in list(sys.modules.items()):
        if _libraries.get(name) is module:  # thousands
            continue
        known = getattr(module, "__dict__", {})  # other attributes of a lazy module may import it
        if not is_users(known.get("__file__") or "<frozen>", ()):
            _libraries[name] = module
            continue
        by_value = name == home or type(known.get("__loader__")).__name__ == PYTEST_LOADER
        if by_value and name != "__main__" and known.get("__name__") == name:
            found.append(module)
    return found


def _named_submodules(code: CodeType, dependencies: Iterable[Any]) -> list[ModuleType]:
    """Return the imported submodules that a function names: functional of `nn.functional.relu`."""
    modules = [each for each in dependencies if isinstance(each, ModuleType)]
    parents = [each.__name__ for each in modules if getattr(each, "__package__", None)]
    found = []
    for parent in parents:  # grows
        inner = {f"{parent}.{name}" for name in code.co_names} & sys.modules.keys()
        found += [sys.modules[name] for name in inner]
        parents += inner
    return found


@contextmanager
def _by_value(modules: Collection[ModuleType]) -> Iterator[None]:
    """Pickle the functions and classes of these modules by value, and search submodules quickly."""
    known = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    search = getattr(internals, SEARCH)
    setattr(internals, SEARCH, _named_submodules)
    try:
        yield
    finally:
        setattr(internals, SEARCH, search)
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)
