"""Untrusted side: report every collective of this rank to the trusted side, before it starts.

Every function of `torch.distributed` ends in a method of `ProcessGroup`, however it is called (by a
name imported early, in an object collective, from a hook or a helper thread), and every wait ends
in `Work.wait`. Only these methods are wrapped. Functional collectives (which DTensor uses) and the
collectives of DistributedDataParallel start in C++, and are redirected to these methods.
"""

from __future__ import annotations

import _thread
import functools
import math
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gradsync.ranks.inside.watch import ddp, functional, process_groups
from gradsync.ranks.inside.watch.handles import is_done
from gradsync.ranks.inside.watch.state import Watch
from gradsync.ranks.inside.watch.tensors import exchanged, versioned, with_own_versions

# ProcessGroup's method -> (the name in torch.distributed, the position of the input tensors)
COLLECTIVES: dict[str, tuple[str, int | None]] = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce_coalesced", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 1),
    "allgather_coalesced": ("all_gather_coalesced", 1),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", 1),
    "_allgather_base": ("all_gather_into_tensor", 1),
    "all_gather_single": ("all_gather_into_tensor", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "reduce_scatter": ("reduce_scatter", 0),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 0),
    "reduce_scatter_single": ("reduce_scatter_tensor", 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", 0),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", 0),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all_single", 1),
    "all_to_all_single": ("all_to_all_single", 1),
    "barrier": ("barrier", None),
    "monitored_barrier": ("monitored_barrier", None),
    "send": ("send", 0),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
}
ENDLESS = 30.0  # seconds; a rank in a shorter wait is not blocked: it continues in any case
BLOCKS = {"monitored_barrier"}  # the call itself blocks, and returns no handle
REDUCTIONS = {
    getattr(dist.ReduceOp, name): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


@functools.cache  # once per process; forked ranks inherit it
def install() -> Watch:
    """Wrap the methods, and return the object that all wrappers share."""
    watch = Watch()
    functional.install()
    for name, (op, position) in COLLECTIVES.items():
        if hasattr(dist.ProcessGroup, name):  # other versions of torch have other methods
            _wrap_collective(watch, name, op, position)
    for owner in (dist.Work, torch._C.Future, torch._C):  # torch.jit.wait calls the last one
        _wrap_wait(watch, owner)
    _wrap_look(watch, dist.Work, "is_completed", bool)
    _wrap_look(watch, torch._C.Future, "done", bool)
    _wrap_look(watch, dist.Work, "result", _always)  # these two raise while the call is incomplete
    _wrap_look(watch, torch._C.Future, "value", _always)
    _wrap_future(watch)
    _wrap_collection(watch)
    _wrap_callback(watch, "then")
    _wrap_callback(watch, "add_done_callback")
    process_groups.install(watch)
    ddp.install(watch)
    _wrap_join(watch)
    _wrap_bare_threads(watch)
    os.register_at_fork(after_in_child=watch.end)  # a child of this rank is not this rank
    return watch


def _wrap_collective(watch: Watch, name: str, op: str, position: int | None) -> None:
    original = getattr(dist.ProcessGroup, name)

    def wrapper(group: Any, *args: Any, **kwargs: Any) -> Any:
        members = watch.members(group)
        if members is None:
            return original(group, *args, **kwargs)
        at = position if position is not None and position < len(args) else len(args)
        tensors, others = args[at : at + 1], (*args[:at], *args[at + 1 :])
        details = _details(op, members, args)
        collective = watch.describe(op, group.group_name, tensors, members=members, **details)
        waits = op in BLOCKS or any(getattr(o, "asyncOp", None) is False for o in args)
        call = watch.recorder.enter(collective, waits=waits)
        if not waits:
            args = (*args[:at], *with_own_versions(tensors), *args[at + 1 :])
        try:
            work = original(group, *args, **kwargs)
        except BaseException:
            watch.recorder.leave(call, at_once=True)
            raise
        if work is None:
            watch.recorder.leave(call)
        else:
            watch.handles.begin(work, call, [] if waits else versioned(tensors, others))
        return work

    setattr(dist.ProcessGroup, name, wrapper)


def _details(op: str, members: tuple[int, ...], args: tuple[Any, ...]) -> dict[str, Any]:
    """Return further arguments that must agree: root, reduction, peer, tag, and sizes by rank."""
    details: dict[str, Any] = {}
    if op in ("send", "recv"):
        if len(args) == 3:
            details["peer"] = members[args[1]]
        details["tag"] = args[-1]
        return details
    if op.startswith("all_to_all"):
        details["receives"], details["sends"] = exchanged(args, len(members))
    for options in args:
        if hasattr(options, "rootRank"):
            details["root"] = members[options.rootRank]
        if hasattr(options, "reduceOp"):
            details["reduce"] = REDUCTIONS.get(getattr(options.reduceOp, "op", options.reduceOp))
    return details


def _wrap_wait(watch: Watch, owner: Any) -> None:
    original = owner.wait

    def wrapper(handle: Any, *args: Any, **kwargs: Any) -> Any:
        calls = watch.calls_of(handle)
        if not calls:
            return original(handle, *args, **kwargs)
        touched = watch.handles.touched(calls)
        if not is_done(handle) and _seconds(*args, **kwargs) >= ENDLESS:
            watch.handles.wait(handle, calls)
        try:
            result = original(handle, *args, **kwargs)
        except BaseException as error:
            if isinstance(error, Exception) and not is_done(handle):  # it timed out
                watch.recorder.go_on(calls[-1])
            else:
                watch.handles.done(calls, at_once=True)
            raise
        watch.handles.done(calls, touched=touched)
        return result

    owner.wait = wrapper


def _seconds(timeout: Any = None) -> float:
    """Return the time limit of a wait: `Work.wait` takes a timedelta, or seconds; 0 is no limit."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    return seconds or math.inf


def _wrap_look(watch: Watch, owner: Any, name: str, shows_end: Callable[[Any], bool]) -> None:
    """Wrap a method that does not block, and whose result may show that a call is complete."""
    original = getattr(owner, name)

    def wrapper(handle: Any) -> Any:
        answer = original(handle)
        calls = watch.calls_of(handle)
        if calls and shows_end(answer):
            watch.handles.done(calls, touched=watch.handles.touched(calls))
        return answer

    setattr(owner, name, wrapper)


def _always(_answer: Any) -> bool:
    return True


def _wrap_future(watch: Watch) -> None:
    original = dist.Work.get_future

    def wrapper(work: Any) -> Any:
        future = original(work)
        if calls := watch.calls_of(work):
            watch.handles.add(future, calls)
        return future

    dist.Work.get_future = wrapper  # type: ignore[method-assign, assignment]


def _wrap_collection(watch: Watch) -> None:
    """Wrap the function that `torch.futures.collect_all` and `wait_all` call."""
    original = torch._C._collect_all

    def wrapper(futures: Any) -> Any:
        collected = original(futures)
        if calls := [call for future in futures for call in watch.calls_of(future)]:
            watch.handles.add(collected, calls)
        return collected

    torch._C._collect_all = wrapper


def _wrap_callback(watch: Watch, name: str) -> None:
    original = getattr(torch._C.Future, name)

    def wrapper(future: Any, callback: Callable[[Any], Any]) -> Any:
        calls = watch.calls_of(future)
        if not calls:
            return original(future, callback)
        chained = original(future, watch.handles.watched(calls, callback))
        if chained is not None:
            watch.handles.add(chained, calls)
        return chained

    setattr(torch._C.Future, name, wrapper)


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
