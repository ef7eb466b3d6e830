"""Untrusted side: report the waits for futures, which belong to works of collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradsync.ranks.inside.watch.state import Watch

Future = torch._C.Future


def install(watch: Watch) -> None:
    """Wrap the methods of futures that wait, or that make another future of one."""
    _wrap_wait(watch, Future)
    _wrap_wait(watch, torch._C)  # torch.jit.wait calls this one
    _wrap_look(watch, "done", bool)
    _wrap_look(watch, "value", lambda _: True)  # it raises while the call is incomplete
    _wrap_callback(watch, "then")
    _wrap_callback(watch, "add_done_callback")
    _wrap_collection(watch)


def _wrap_wait(watch: Watch, owner: Any) -> None:
    original = owner.wait

    def wait(future: Any) -> Any:
        return watch.wait(future, lambda: original(future))

    owner.wait = wait


def _wrap_look(watch: Watch, name: str, shows_end: Callable[[Any], bool]) -> None:
    """Wrap a method that does not block, and whose result may show that a call is complete."""
    original = getattr(Future, name)

    def look(future: Any) -> Any:
        answer = original(future)
        watch.saw(future, complete=shows_end(answer))
        return answer

    setattr(Future, name, look)


def _wrap_callback(watch: Watch, name: str) -> None:
    original = getattr(Future, name)

    def add(future: Any, callback: Callable[[Any], Any]) -> Any:
        calls = watch.calls_of(future)
        if not calls:
            return original(future, callback)
        chained = original(future, watch.handles.watched(calls, callback))
        if chained is not None:
            watch.handles.add(chained, calls)
        return chained

    setattr(Future, name, add)


def _wrap_collection(watch: Watch) -> None:
    """Wrap the function that `torch.futures.collect_all` and `wait_all` call."""
    original = torch._C._collect_all

    def collect(futures: Any) -> Any:
        collected = original(futures)
        watch.follow(collected, futures)
        return collected

    torch._C._collect_all = collect
