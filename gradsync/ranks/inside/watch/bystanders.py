"""Untrusted side: prove that some threads can't change anything for a rank that waits.

A heartbeat, a monitor or a timer that prints must not hide a deadlock. `are_bystanders` examines
such threads while all others of the process wait. It accepts only threads that can never call a
collective, wake or start a thread, or end the process, because:

1. Each waits in `time.sleep`, or for an event with a time limit, called as a statement or condition
   of at most one function of the user's. So all that it holds is in variables, not on a stack.
2. From there it can reach these variables, the global names in its code, the items of containers,
   attributes that any reached code names, the code of functions, and what operators call. Computed
   names need a function or an attribute (`getattr`, `__dict__`) that is not in `ALLOWED`.
3. All that it can reach is plain data, the user's own code, or in `ALLOWED`: functions that call no
   function that they are given, and, of modules and classes, the attributes that code may name.
4. Nothing else changes what it can reach: all threads that could act are examined together, and the
   result is void as soon as one of the others acts (see `Threads`).

In doubt, a thread is not accepted. Not considered: finalizers that happen to run in the thread.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from functools import partial
from io import BufferedReader, BufferedWriter, BytesIO, FileIO, StringIO, TextIOWrapper
from itertools import pairwise
from pathlib import Path, PosixPath
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, SupportsIndex

from gradsync.ranks.inside.watch.callers import variables
from gradsync.ranks.protocol.user_files import is_users

MOST = 2000  # objects that are examined
PLAIN = {int, float, complex, str, bytes, bool, range, time.struct_time, PosixPath}
PLAIN |= {datetime, timedelta, timezone, FileIO, MemberDescriptorType}
PLAIN |= {type(None), type(NotImplemented), StringIO, BytesIO}
# Class -> what its objects lead to.
PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
    **dict.fromkeys((list, tuple, set, frozenset, deque), list),
    dict: lambda items: [*items.keys(), *items.values()],
    TextIOWrapper: lambda file: [file.buffer],
    BufferedWriter: lambda file: [file.raw],
    BufferedReader: lambda file: [file.raw],
    MethodType: lambda method: [method.__func__, method.__self__],
    partial: lambda call: [call.func, call.args, call.keywords],
    property: lambda member: [member.fget, member.fset, member.fdel],
    staticmethod: lambda member: [member.__func__],
    classmethod: lambda member: [member.__func__],
}
# Module or class -> the attributes that code may name. The objects that these return are plain, of
# a class that is listed here, or have no method that matters.
ALLOWED = {
    "builtins": "print len int float str bool bytes repr round abs sum any all range tuple list "
    "dict set enumerate zip isinstance open BaseException Exception OSError ValueError KeyError "
    "RuntimeError TypeError",
    "time": "sleep time monotonic perf_counter process_time time_ns strftime localtime gmtime "
    "ctime",
    "datetime": "datetime timedelta timezone",
    "math": "floor ceil sqrt inf",
    "os": "getpid getppid getloadavg cpu_count path sep devnull",
    "posixpath": "exists join basename dirname getsize getmtime",
    "socket": "gethostname",
    "sys": "stdout stderr",
    "resource": "getrusage RUSAGE_SELF",
    "json": "dumps",
    "logging": "getLogger debug info warning error critical DEBUG INFO WARNING ERROR",
    "logging.Logger": "debug info warning error critical log name level",
    "logging.RootLogger": "",
    "threading.Event": "wait is_set clear",
    "threading.Thread": "name ident daemon is_alive native_id",
    "_thread.lock": "acquire release locked",
    "_thread.RLock": "acquire release",
    "torch": "cuda distributed",
    "torch.cuda": "is_available memory_allocated max_memory_allocated memory_reserved",
    "torch.distributed": "get_rank get_world_size is_initialized is_available",
    "psutil": "cpu_percent virtual_memory Process",
    "psutil.Process": "memory_info cpu_percent memory_percent num_threads pid",
}
NOT_ALLOWED = {"format", "format_map", "sort", "mro", "detach"}  # of plain data
READABLE = {"__name__", "__qualname__", "__class__"}
CREATION = {"__init__", "__new__", "__init_subclass__", "__class_getitem__", "__replace__"}
# Modules of log handlers, formatters and filters, and of functions that handle exceptions.
LOGGING = {"logging", "torch._logging._internal", "_pytest.logging"}
HOOKS = {"_thread", "_pytest.threadexception"}
CAPTURE = "_pytest.capture"  # pytest's files in place of stdout and stderr
HEAP_TYPE = 1 << 9  # a class that Python code has defined, in most cases
UNKNOWN = object()
OWN = str(Path(__file__).with_name("threads.py"))
_sleep = time.sleep


class CouldActError(Exception):
    """A thread can reach something whose effects are unknown."""


def sleep(seconds: float | SupportsIndex, /) -> None:
    """Do what `time.sleep` does, with a frame that shows where the thread is."""
    _sleep(seconds)


ABOVE = {(threading.__file__, "wait"), (OWN, "wait"), (__file__, "sleep")}
WAITS = {threading.Event.wait.__code__, sleep.__code__}
BELOW = {(threading.__file__, name) for name in ("_bootstrap", "_bootstrap_inner", "run")}
BELOW.add((OWN, "run_to_the_end"))


def are_bystanders(threads: Sequence[threading.Thread]) -> bool:
    """Return whether none of these threads can ever do anything for the rank's other threads."""
    hook = threading.excepthook
    if getattr(hook, "func", hook).__module__ not in HOOKS:
        return False
    before = [_stack(thread) for thread in threads]
    reach = Reach()
    try:
        for thread, stack in zip(threads, before, strict=True):
            reach.enter(thread, [frame for frame, _ in stack])
        reach.complete()
    except (CouldActError, AttributeError):
        return False
    return before == [_stack(thread) for thread in threads]


def _stack(thread: threading.Thread) -> list[tuple[FrameType, int]]:
    """Return a thread's frames, innermost first, and the instruction in which each is."""
    frame = sys._current_frames().get(thread.ident or 0)
    stack = []
    while frame is not None:
        stack.append((frame, frame.f_lasti))
        frame = frame.f_back
    return stack


def _depth_after(code: CodeType, offset: int) -> int | None:
    """Return how many values the stack has after the instruction at `offset`, or None if unknown.

    It is unknown in an `except` block.
    """
    depths = {0: 0}
    instructions = list(dis.get_instructions(code))
    for instruction, following in pairwise([*instructions, instructions[-1]]):
        depth, name = depths.get(instruction.offset), instruction.opname
        if depth is None:
            continue
        argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
        after = depth + dis.stack_effect(instruction.opcode, argument, jump=False)
        # Python 3.11 has two instructions for a call, of which the first one may be the current.
        if instruction.offset <= offset < following.offset:
            if name != "PRECALL":
                return after
            offset = following.offset
        if instruction.opcode in (*dis.hasjrel, *dis.hasjabs):
            effect = dis.stack_effect(instruction.opcode, argument, jump=True)
            depths.setdefault(instruction.argval, depth + effect)
        ends = name.startswith(("RETURN_V", "RETURN_C", "RAISE", "RERAISE"))
        if not ends and name not in ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE"):
            depths.setdefault(following.offset, after)
    return None


class Reach:
    """The objects that threads can reach, and the names of attributes in reached code."""

    def __init__(self) -> None:
        self._names = {"write", "flush", "keys"}  # `print` and `dict` call these
        self._objects: dict[int, Any] = {}  # by id; it also keeps them alive
        self._add([sys.stdout, sys.stderr])
        self._allowed = {  # the ids of functions and classes
            id(vars(sys.modules[key]).get(name))
            for key, names in ALLOWED.items()
            if key in sys.modules
            for name in names.split()
        }

    def enter(self, thread: threading.Thread, frames: list[FrameType]) -> None:
        """Add what a thread can reach directly, which waits in a known place.

        Raises:
            CouldActError: it is elsewhere, or may have values on the interpreter's stack.
        """
        places = [(frame.f_code.co_filename, frame.f_code.co_name) for frame in frames]
        above = next((i for i, place in enumerate(places) if place not in ABOVE), 0)
        own = frames[above:][: places[above] not in BELOW]  # one frame at most
        beyond = places[above + len(own) :]
        if not above or frames[above - 1].f_code not in WAITS or not BELOW.issuperset(beyond):
            raise CouldActError
        if any(_depth_after(frame.f_code, frame.f_lasti) != 1 for frame in own):
            raise CouldActError  # 1: only the result of the call
        for frame in [frames[above - 1], *own]:
            self._add(variables(frame))
        for frame in own:
            self._add(self._of_code(frame.f_code, frame.f_globals))
        # What the thread runs may be written in C, and call the user's function again and again.
        runs = ("_target", "_args", "_kwargs", "function", "args", "kwargs")
        self._add(vars(thread)[name] for name in runs if name in vars(thread))

    def complete(self) -> None:
        """Add all objects that these lead to, in any number of steps.

        Raises:
            CouldActError: the effects of one of them are unknown.
        """
        size = (0, 0)
        while size != (size := (len(self._names), len(self._objects))):
            for item in list(self._objects.values()):
                self._add(self._leads(item))
        special = {name for name in self._names if _is_special(name)}
        if not special <= READABLE or self._names & NOT_ALLOWED:
            raise CouldActError

    def _add(self, items: Iterable[Any]) -> None:
        for item in items:
            self._objects[id(item)] = item
        if id(UNKNOWN) in self._objects or len(self._objects) > MOST:
            raise CouldActError

    def _leads(self, item: Any) -> Iterable[Any]:
        """Return what an object leads to."""
        kind = type(item)
        if kind in PLAIN:
            return []
        if kind in PARTS or kind.__module__ == CAPTURE:
            return PARTS.get(kind, PARTS[TextIOWrapper])(item)
        if kind in (FunctionType, BuiltinFunctionType) and id(item) in self._allowed:
            return [logging.root] if item.__module__ == "logging" else []
        if kind is BuiltinFunctionType:  # a method of an object
            self._names.add(item.__name__)
            return [UNKNOWN if type(item.__self__) in (ModuleType, type(None)) else item.__self__]
        if kind is FunctionType:
            return self._of_function(item)
        if kind is ModuleType and "__getattr__" not in vars(item):
            return [self._member(item, name) for name in self._names & vars(item).keys()]
        if kind is type:
            return self._of_class(item, creates=True)
        return [*self._of_class(kind), *self._attributes(item)]

    def _of_function(self, function: FunctionType) -> Iterator[Any]:
        if function.__code__.co_filename == dataclasses.__file__:  # around the generated __repr__
            yield vars(function).get("__wrapped__", UNKNOWN)
            return
        if not is_users(function.__code__.co_filename, ()):
            raise CouldActError
        yield from self._of_code(function.__code__, function.__globals__)
        for cell in function.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:  # it has no value yet
                raise CouldActError from None
        yield from (function.__defaults__, function.__kwdefaults__)
        yield from self._attributes(function)

    def _of_code(self, code: CodeType, namespace: dict[str, Any]) -> Iterator[Any]:
        """Yield the objects that code names; note the names of attributes.

        An attribute of a module is looked up if it is named directly, as in `os.getpid()`.
        """
        module: Any = None  # that the last instruction has loaded
        for instruction in dis.get_instructions(code):
            if instruction.opname == "EXTENDED_ARG":
                continue
            follows = module is not None and not instruction.is_jump_target
            if follows and instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                item = self._member(module, instruction.argval)
            else:
                yield module
                item = self._named(instruction, namespace)
            module = item if type(item) is ModuleType else None
            if module is None:
                yield item
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from self._of_code(constant, namespace)

    def _named(self, instruction: dis.Instruction, namespace: dict[str, Any]) -> Any:
        """Return the object that an instruction loads by its name, or None; note other names."""
        opname, name = instruction.opname, instruction.argval
        if opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            return namespace.get(name, vars(builtins).get(name, UNKNOWN))
        if opname in ("IMPORT_NAME", "LOAD_BUILD_CLASS"):
            return UNKNOWN
        if instruction.opcode in dis.hasname:
            self._names.add(name)
        return None

    def _member(self, module: ModuleType, name: str) -> Any:
        """Return an attribute of a module that is the user's, or that is allowed."""
        users = is_users(vars(module).get("__file__") or "<frozen>", ())
        known = users or name in ALLOWED.get(module.__name__, "").split()
        return vars(module).get(name, UNKNOWN) if known else UNKNOWN

    def _of_class(self, kind: type, *, creates: bool = False) -> Iterator[Any]:
        """Yield what a class adds to its objects; if it `creates` some, also what that calls."""
        if type(kind) is not type:
            raise CouldActError
        for base in kind.__mro__[:-1]:
            allowed = ALLOWED.get(f"{base.__module__}.{base.__qualname__}")
            if allowed is not None:
                if not self._names & vars(base).keys() <= set(allowed.split()):
                    raise CouldActError
                if base is logging.Logger:
                    self._add(_log_streams())
            elif id(base) not in self._allowed or not creates:
                yield from self._of_members(base, creates or "__class__" in self._names)

    def _of_members(self, kind: type, creates: bool) -> Iterator[Any]:
        if not kind.__flags__ & HEAP_TYPE:  # written in C
            raise CouldActError
        for name, member in vars(kind).items():
            implied = _is_special(name) and callable(member) and (creates or name not in CREATION)
            if implied or name in self._names:
                yield member

    def _attributes(self, item: Any) -> Iterator[Any]:
        """Yield the values of those attributes of an object that code names."""
        for name in self._names:
            if name in getattr(item, "__dict__", ()):
                yield vars(item)[name]
            elif isinstance(getattr(type(item), name, None), MemberDescriptorType):
                yield getattr(item, name, None)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _log_streams() -> list[Any]:
    """Return the files of all log handlers.

    Raises:
        CouldActError: a record may be handled by code of the user's, or by a queue.
    """
    references = logging._handlerList  # type: ignore[attr-defined]
    handlers = [handler for reference in references if (handler := reference())]
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    parts = [*handlers, *(handler.formatter or handler for handler in handlers), *loggers]
    parts += [each for part in parts for each in getattr(part, "filters", ())]
    standard = logging.getLogRecordFactory() is logging.LogRecord
    if not standard or not {type(part).__module__ for part in parts} <= LOGGING:
        raise CouldActError
    return [getattr(handler, "stream", None) for handler in handlers]
