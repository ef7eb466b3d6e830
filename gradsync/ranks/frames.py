"""Untrusted side: which line of the user's own code is on the stack, and which tensor it holds."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import nn

import gradsync

LIBRARIES = tuple(str(Path(str(m.__file__)).parent) for m in (torch, gradsync, traceback))
MODULE_FRAMES = 6  # how far above the call a local variable may hold the model


def is_users(filename: str, roots: tuple[str, ...]) -> bool:
    """Tell whether a file is the user's own: under `roots`, or, without roots, in no library."""
    if roots:
        return filename.startswith(roots)
    return not filename.startswith((*LIBRARIES, "<frozen"))


def caller(roots: tuple[str, ...], tensor: torch.Tensor | None) -> tuple[str | None, str | None]:
    """Return ("template_trainer.py:91", "fc2.bias.grad") for the call being made."""
    where = label = None
    frames = [f for f in _stack() if is_users(f.f_code.co_filename, roots)]
    if frames:
        where = place(frames[0].f_code.co_filename, frames[0].f_lineno)
    if tensor is not None:
        for frame in frames[:MODULE_FRAMES]:
            label = label or _label(frame, tensor)
    return where, label


def place(filename: str, line: int) -> str:
    return f"{Path(filename).name}:{line}"


def describe_exception(error: BaseException, roots: tuple[str, ...]) -> dict[str, Any]:
    """Return what the trusted side wants to know of an exception, as plain data."""
    summary = traceback.extract_tb(error.__traceback__)
    users = [f for f in summary if is_users(f.filename, roots)]
    return {
        "type": type(error).__name__,
        "message": str(error),
        "code": getattr(error, "code", None) if isinstance(error, SystemExit) else None,
        "missing": _missing_name(error),
        "frames": [
            [place(f.filename, f.lineno or 0), f.name, linecache.getline(f.filename, f.lineno or 0)]
            for f in users
        ],
        "in_collective": any(f.name in ("wrapper", "start_group") for f in summary),
        "out_of_memory": isinstance(error, MemoryError),
    }


def _missing_name(error: BaseException) -> str | None:
    """Return the name that a module was asked for and does not define."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.name
    return None


def _stack() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _label(frame: FrameType, tensor: torch.Tensor) -> str | None:
    for value in list(frame.f_locals.values()):
        if isinstance(value, nn.Module):
            for name, candidate in (*value.named_parameters(), *value.named_buffers()):
                if _same_memory(candidate, tensor):
                    return name
                if candidate.grad is not None and _same_memory(candidate.grad, tensor):
                    return f"{name}.grad"
    return None


def _same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or (
        one.numel() == other.numel() > 0
        and one.device == other.device
        and one.data_ptr() == other.data_ptr()
    )
