"""Untrusted side: which threads could still enter a collective."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

from gradsync.ranks.inside.watch.state import Watch


def install(watch: Watch) -> None:
    """Wrap the functions that join a thread, and that start one which `threading` does not list."""
    _wrap_join(watch)
    _wrap_bare_threads(watch)


def _wrap_join(watch: Watch) -> None:
    """Wrap `Thread.join`: a thread in it can't enter a collective until the other thread ends."""
    original = threading.Thread.join

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if timeout is not None or not watch.began or not thread.is_alive():
            return original(thread, timeout)
        with watch.recorder.asleep(thread):
            return original(thread)

    threading.Thread.join = join  # type: ignore[method-assign, assignment]


def _wrap_bare_threads(watch: Watch) -> None:
    """Wrap the function that starts a thread; `threading` itself calls another name of it."""
    original = _thread.start_new_thread

    def start_new_thread(function: Callable[..., Any], *args: Any) -> int:
        if not watch.began:
            return original(function, *args)
        return watch.recorder.start_bare(original, function, *args)

    _thread.start_new_thread = _thread.start_new = start_new_thread
