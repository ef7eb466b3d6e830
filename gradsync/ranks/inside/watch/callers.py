"""Untrusted side: find the line of the user's code on the stack, and the name of its tensor."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch import nn

from gradsync.ranks.protocol import events
from gradsync.ranks.protocol.user_files import PACKAGE, file_and_line, is_users

MODULE_FRAMES = 6  # above the call that are searched for a local variable with the model
Named = list[tuple[str, "ReferenceType[torch.Tensor]"]]
# Module -> its tensors, and the lines that passed other tensors; looked up at each collective. The
# tensors are not kept alive: a module that shards its parameters frees the whole ones.
NAMES: WeakKeyDictionary[nn.Module, tuple[Named, set[str]]] = WeakKeyDictionary()
# Files between the caller and the collective.
CALLED = (f"{PACKAGE / 'ranks'}{os.sep}", f"{Path(dist.__file__).parent}{os.sep}")
WORKER = str(Path(__file__).parents[1] / "worker.py")  # calls the user's function
WATCHING = str(Path(__file__).parent)
FUNCTIONAL = str(Path(dist.__file__).with_name("_functional_collectives.py"))
DECORATORS = ("wrapper", "inner_func", "decorate_context")  # functions around those of torch
MODULE_CALLS = ("_wrapped_call_impl", "_call_impl")  # of a module: model(x)
NO_FUNCTIONS = ("<module>", "<cell>")
HELD_BY_ITS_FRAME = 3  # references: the frame's, the local variable's, and one for counting


@dataclass(frozen=True, slots=True)
class Caller:
    """The place of a call of a collective, and the name of its tensor."""

    where: str | None = None  # "template_trainer.py:91"
    names: tuple[str, ...] = ()  # the user's functions on the stack, innermost last
    label: str | None = None  # "fc2.bias.grad"
    via: str | None = None  # "DistributedDataParallel": what the user called, if not the collective
    by_test: bool = False  # the test itself calls it, not the user's files
    after: str | None = None  # the exception that the user's frames are handling


def caller(roots: tuple[str, ...], op: str, tensor: torch.Tensor | None) -> Caller:
    """Return the caller of the current call of the collective `op`."""
    stack = list(_stack())
    if roots and _is_test(stack, roots):
        return Caller(by_test=True)
    frames = [f for f in stack if is_users(f.f_code.co_filename, roots)]
    if not frames:
        return Caller()
    where = file_and_line(frames[0].f_code.co_filename, frames[0].f_lineno)
    label = None
    with suppress(RuntimeError, ValueError, TypeError, AttributeError):
        # a name is optional: an unusual tensor must not make the call fail
        if tensor is not None and tensor.numel() > 0:
            modules = _modules(frames[:MODULE_FRAMES])
            label = next(filter(None, (_label(each, tensor, where) for each in modules)), None)
    label = label or _without_gradients(stack)
    via = _via(stack[: stack.index(frames[0])], op)
    return Caller(where, _names(frames), label, via, after=_handled(frames, roots))


def _handled(frames: Sequence[FrameType], roots: tuple[str, ...]) -> str | None:
    """Describe the exception that one of these frames handles, in a `finally` or an `except`."""
    error = sys.exc_info()[1]
    trace = error.__traceback__ if isinstance(error, Exception) else None
    if trace is None or trace.tb_frame not in frames:
        return None
    lines = [
        file_and_line(frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(trace)
        if is_users(frame.f_code.co_filename, roots)
    ]
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
    kind, _, message = said.partition(": ")
    return f"{kind} at {lines[-1]}" + (f": {message}" if message else "")


def _without_gradients(stack: Sequence[FrameType]) -> str | None:
    """Name the parameters without gradients of the FSDP2 unit whose gradients are reduced."""
    for frame in stack:
        if frame.f_code.co_name == "post_backward" and "fsdp_params_with_grad" in frame.f_locals:
            reduced = set(map(id, frame.f_locals["fsdp_params_with_grad"]))
            unit = frame.f_locals["self"].fsdp_params
            names = [param._param_fqn for param in unit if id(param) not in reduced]
            return f"{events.NO_GRADIENTS}{', '.join(names)}" if names else None
    return None


def _is_test(stack: Sequence[FrameType], roots: tuple[str, ...]) -> bool:
    """Return whether the test's code, not the user's, calls `torch.distributed`."""
    for frame in stack:
        file = frame.f_code.co_filename
        if not file.startswith(CALLED):
            if file.startswith("<") or is_users(file, roots):
                return False
            return is_users(file, ())
    return False


def _via(called: Sequence[FrameType], op: str) -> str | None:
    """Return the function or class that the user called, if it is not the collective itself.

    Args:
        called: the frames of libraries that the user's frame called, innermost first.
        op: the collective.
    """
    called = [f for f in called if not f.f_code.co_filename.startswith(WATCHING)]
    files = [f.f_code.co_filename for f in called]
    direct = "a functional collective" if FUNCTIONAL in files else None
    outer = [f for f in called[1:] if f.f_code.co_name not in DECORATORS]
    outer = [f for f in outer if f.f_code.co_filename != contextlib.__file__]
    if not outer:
        return direct
    name = outer[-1].f_code.co_name
    if name.startswith("__") or name in MODULE_CALLS:
        return type(outer[-1].f_locals.get("self")).__name__
    return direct if name == op or name.startswith("_") else name


def _names(frames: Sequence[FrameType]) -> tuple[str, ...]:
    """Return the functions of these frames, innermost last, without direct repetitions."""
    names = [frame.f_code.co_name for frame in frames]
    names = [name for name in names if name not in NO_FUNCTIONS]
    once = [name for name, _ in groupby(names)]
    return tuple(reversed(once[: events.MAX_CALLERS]))


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != WORKER:
        yield frame
        frame = frame.f_back


def _modules(frames: list[FrameType]) -> Iterator[nn.Module]:
    """Yield the modules in local variables of these frames, each once."""
    seen = set()
    for frame in frames:
        for value in variables(frame):
            if isinstance(value, nn.Module) and id(value) not in seen:
                seen.add(id(value))
                yield value


def variables(frame: FrameType) -> list[Any]:
    """Return the values of a frame's variables, and keep none of them alive.

    Before Python 3.13, a function's frame keeps the dict that `f_locals` returns until it is read
    again. So it would keep objects and their hooks alive after the function has released them.
    """
    named = frame.f_locals
    values = list(named.values())
    is_copy = frame.f_code.co_flags & inspect.CO_OPTIMIZED and isinstance(named, dict)
    if is_copy and sys.getrefcount(named) == HELD_BY_ITS_FRAME:  # no other code uses the dict
        named.clear()
    return values


def _label(module: nn.Module, tensor: torch.Tensor, where: str) -> str | None:
    """Return the name of a tensor that is a parameter, gradient or buffer of `module`."""
    memory, size = tensor.data_ptr(), tensor.numel()
    named, strange = NAMES.get(module, ([], set()))
    label = _name_of(named, memory, size)
    if label is None and where not in strange:  # the module's tensors may have been replaced
        tensors = (*module.named_parameters(), *module.named_buffers())
        named = [(name, ref(one)) for name, one in tensors]
        NAMES[module] = named, strange
        label = _name_of(named, memory, size)
        if label is None:
            strange.add(where)
    return label


def _name_of(named: Named, memory: int, size: int) -> str | None:
    for name, reference in named:
        candidate = reference()
        if candidate is None:
            continue
        if _lies_at(candidate, memory, size):
            return name
        grad = candidate.grad if candidate.is_leaf else None
        if grad is not None and _lies_at(grad, memory, size):
            return f"{name}.grad"
    return None


def _lies_at(tensor: torch.Tensor, memory: int, size: int) -> bool:
    return tensor.numel() == size and tensor.layout == torch.strided and tensor.data_ptr() == memory
