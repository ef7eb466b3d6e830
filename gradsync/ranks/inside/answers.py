"""Untrusted side: a rank's answer: the value of a function, or a description of its exception."""

from __future__ import annotations

import linecache
import os
import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from gradsync.ranks.inside.rendezvous import start_group
from gradsync.ranks.protocol import values, wire
from gradsync.ranks.protocol.user_files import WATCH, file_and_line, is_users

ADDRESS = re.compile(r" at 0x[0-9a-f]+")
MAX_FRAMES = 20  # of a traceback that are reported, innermost last
MAX_MESSAGE = 10_000  # characters
MAX_NAMES = 200  # of a module's definitions that are reported
# File and function of each frame that runs a collective for the rank.
STARTERS = {*WATCH, (start_group.__code__.co_filename, start_group.__name__)}


def answer_of(
    compute: Callable[[], Any], nonce: str, roots: tuple[str, ...] = ()
) -> tuple[bytes, list[bytearray | memoryview]]:
    """Return the head of the frame with a function's result or exception, and its body's pieces.

    Args:
        compute: the function.
        nonce: identifies the run to which this answer belongs.
        roots: an exception's description names lines of the files in these folders only.
    """
    try:
        tree, pieces = values.encode(compute())
        head = {"value": tree, "nonce": nonce}
        return wire.head("answer", head, sum(map(len, pieces))), pieces
    except BaseException as error:  # noqa: BLE001 - any exception is reported
        return wire.head("raised", describe_exception(error, roots), 0), []


def describe_exception(error: BaseException, roots: tuple[str, ...]) -> dict[str, Any]:
    """Return an exception as plain data for the trusted side."""
    summary = traceback.extract_tb(error.__traceback__)
    users = [f for f in summary if is_users(f.filename, roots)]
    lines = [(f.filename, f.lineno or 0, f.name) for f in users]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append((error.filename, error.lineno or 0, "<module>"))
    code = error.code if isinstance(error, SystemExit) else None
    return {
        "type": type(error).__name__,
        "message": _without(roots, _text(error.msg if isinstance(error, SyntaxError) else error)),
        "code": code if code is None or type(code) is int else _text(code),
        "missing": _missing_name(error),
        **_module(error),
        "marked": _marked(error),
        "by_user": bool(users) and users[-1] is summary[-1],
        "frames": [
            [file_and_line(filename, line), name, _source_line(filename, line)]
            for filename, line, name in lines[-MAX_FRAMES:]
        ],
        "in_collective": any((f.filename, f.name) in STARTERS for f in summary),
        "out_of_memory": isinstance(error, MemoryError),
        "in_course": bool(roots),
    }


def _text(thing: object) -> str:
    try:
        return str(thing)[:MAX_MESSAGE]
    except Exception as error:  # noqa: BLE001 - the user's own __str__ may raise anything
        return f"(str() of the exception raised {type(error).__name__})"


def _without(roots: tuple[str, ...], text: str) -> str:
    """Remove folders and memory addresses, which differ from grade to grade."""
    for root in roots:
        text = text.replace(root + os.sep, "")
    return ADDRESS.sub("", text)


def _source_line(filename: str, line: int) -> str:
    with suppress(LookupError):  # the file declares an unknown encoding
        return linecache.getline(filename, line)
    return ""


def _missing_name(error: BaseException) -> str | None:
    """Return the name of an attribute that a module does not define, or None."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ModuleType):
        return error.name
    return None


def _module(error: BaseException) -> dict[str, Any]:
    """Return the file that lacks a name, and the names that it defines."""
    if _missing_name(error) is None:
        return {}
    module = error.obj  # type: ignore[attr-defined]
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    return {
        "module": os.path.basename(getattr(module, "__file__", None) or ""),  # noqa: PTH119
        "defined": own[:MAX_NAMES],
    }


def _marked(error: BaseException) -> list[Any] | None:
    """Return the source line of a syntax error, and the column, counted from 1."""
    if isinstance(error, SyntaxError) and error.text:
        return [_text(error.text), error.offset or 1]
    return None
