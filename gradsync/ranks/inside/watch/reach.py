"""Untrusted side: whether a thread of the program could ever call a collective.

A thread that reaches nothing but its own functions, the standard library and plain data can't: a
heartbeat, or a timer that prints. In doubt, a thread could.
"""

from __future__ import annotations

import dis
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

MOST = 500  # objects that are looked at
OPEN_ENDED = {"eval", "exec", "__import__", "import_module", "modules", "_getframe", "gc", "ctypes"}
MESSAGES = ("queue", "_queue", "multiprocessing", "concurrent", "asyncio")  # may deliver functions


def conditions_of(thread: threading.Thread) -> list[threading.Condition] | None:
    """Return the conditions that a thread could notify, or None if it could call a collective.

    Args:
        thread: a thread that is about to run.
    """
    first: Iterable[Any] = vars(thread).values()
    if type(thread).run is threading.Thread.run:
        first = (getattr(thread, name, None) for name in ("_target", "_args", "_kwargs"))
    seen: dict[int, Any] = {}  # keeps the objects alive, so that ids are not reused
    todo = [type(thread), *first]
    try:
        while todo:
            item = todo.pop()
            if id(item) not in seen:
                seen[id(item)] = item
                todo += next(leads(item) for kind, leads in LEADS if isinstance(item, kind))
            if len(seen) > MOST:
                return None
    except CouldCallError:
        return None
    return [item for item in seen.values() if isinstance(item, threading.Condition)]


class CouldCallError(Exception):
    """The thread reaches an object that could call a collective."""


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function's code names: globals, and variables of enclosing functions."""
    if _is_standard(function.__module__):
        return
    codes = [function.__code__]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        if not OPEN_ENDED.isdisjoint(code.co_names):
            raise CouldCallError
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                _check(instruction.argval or "a relative import")
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it has no value yet
            raise CouldCallError from None
    yield from (function.__defaults__, function.__kwdefaults__)


def _of_class(kind: type) -> Iterator[Any]:
    if not _is_standard(kind.__module__):
        yield from kind.__mro__[1:]
        yield from vars(kind).values()


def _of_builtin(function: types.BuiltinFunctionType) -> Iterator[Any]:
    _check(function.__module__)
    if not isinstance(function.__self__, types.ModuleType):
        yield function.__self__


def _of_object(item: Any) -> Iterator[Any]:
    module = type(item).__module__
    if _is_standard(module):
        _check(module)
    elif hasattr(item, "__dict__"):
        yield type(item)
    else:
        raise CouldCallError
    if module != "logging":  # a logger leads to all others
        yield from getattr(item, "__dict__", {}).values()


def _check(module: str | None) -> Iterator[Any]:
    """Return nothing, if this module can't lead to a collective."""
    if not _is_standard(module) or (module or "").partition(".")[0] in MESSAGES:
        raise CouldCallError
    return iter(())


def _is_standard(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in (*sys.stdlib_module_names, "numpy")


# The kinds of objects, and functions that return what an object leads to.
LEADS: tuple[tuple[Any, Callable[[Any], Iterable[Any]]], ...] = (
    (types.FunctionType, _of_function),
    (types.BuiltinFunctionType, _of_builtin),
    (types.MethodType, lambda method: (method.__func__, method.__self__)),
    (types.ModuleType, lambda module: _check(module.__name__)),
    (partial, lambda call: (call.func, call.args, call.keywords)),
    (property, lambda item: (item.fget, item.fset)),
    (classmethod | staticmethod, lambda item: (item.__func__,)),
    (type, _of_class),
    (dict, lambda items: (*items.keys(), *items.values())),
    (list | tuple | set | frozenset | deque, iter),
    (types.GeneratorType | types.CoroutineType, lambda _: _check("torch")),
    (object, _of_object),
)
