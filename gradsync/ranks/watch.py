"""Untrusted side: report every collective of this rank to the trusted side, before it starts.

Every collective of `torch.distributed`, whatever it is called through (functions imported early,
object collectives, DTensor, a helper thread), ends in a method of `ProcessGroup`, and every wait in
`Work.wait`. Those are wrapped, nothing above them. Only what C++ starts itself stays unseen: the
gradient buckets of torch's own DistributedDataParallel.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradsync.ranks import frames, wire
from gradsync.records import Collective

# ProcessGroup's method -> (the name in torch.distributed, which argument holds what a rank puts in)
COLLECTIVES: dict[str, tuple[str, int | None]] = {
    "allreduce": ("all_reduce", 0),
    "allreduce_coalesced": ("all_reduce_coalesced", 0),
    "broadcast": ("broadcast", 0),
    "reduce": ("reduce", 0),
    "allgather": ("all_gather", 1),
    "allgather_coalesced": ("all_gather_coalesced", 1),
    "_allgather_base": ("all_gather_into_tensor", 1),
    "all_gather_single": ("all_gather_into_tensor", 1),
    "gather": ("gather", 1),
    "scatter": ("scatter", 0),
    "reduce_scatter": ("reduce_scatter", 0),
    "_reduce_scatter_base": ("reduce_scatter_tensor", 0),
    "reduce_scatter_single": ("reduce_scatter_tensor", 0),
    "alltoall": ("all_to_all", 1),
    "alltoall_base": ("all_to_all_single", 1),
    "all_to_all_single": ("all_to_all_single", 1),
    "barrier": ("barrier", None),
    "monitored_barrier": ("monitored_barrier", None),
    "send": ("send", 0),
    "recv": ("recv", 0),
    "recv_anysource": ("recv", 0),
}
REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
# Threads that PyTorch and multiprocessing keep to move data: they never enter a collective.
DATA_THREADS = ("torch.utils.data", "multiprocessing")


class Recorder:
    """Sends this rank's events, and lets a collective start when the trusted side says go."""

    def __init__(self, channel: socket.socket, began: float, roots: tuple[str, ...]) -> None:
        self._channel = channel
        self._began = began
        self._roots = roots
        self._calls = 0
        self._lock = threading.Lock()

    def enter(self, collective: Collective) -> int:
        """Report the collective and block until it may start; returns its number on this rank."""
        with self._lock:
            call = self._calls
            self._calls += 1
            self._send("enter", call, collective=asdict(collective))
            if wire.receive(self._channel) is None:  # the trusted side is gone: nobody listens
                os._exit(1)
        return call

    def report(self, kind: str, call: int) -> None:
        with self._lock:
            self._send(kind, call)

    def describe(self, op: str, group: Any, tensors: Any = (), **more: Any) -> Collective:
        flat = list(_tensors_in(tensors))
        where, label = frames.caller(self._roots, flat[0] if flat else None)
        return Collective(
            op=op,
            group=group.group_name if group is not None else "world",
            members=tuple(dist.get_process_group_ranks(group)) if group is not None else (),
            shapes=tuple(tuple(t.shape) for t in flat),
            dtype=str(flat[0].dtype).removeprefix("torch.") if flat else None,
            label=label,
            where=where,
            **more,
        )

    def _send(self, kind: str, call: int, **more: Any) -> None:
        self._channel.sendall(
            wire.pack(
                kind,
                {
                    "call": call,
                    "seconds": time.monotonic() - self._began,
                    "thread": threading.get_ident(),
                    "others": _other_threads(),
                    **more,
                },
            )
        )


def install(recorder: Recorder) -> None:
    """Wrap the methods; call it before a learner's module is imported."""
    pending: dict[int, tuple[Any, int]] = {}  # id -> (work or future, call), kept till it is done
    for name, (op, position) in COLLECTIVES.items():
        _wrap_collective(recorder, pending, name, op, position)
    _wrap_wait(recorder, pending, dist.Work, "wait")
    _wrap_wait(recorder, pending, torch._C.Future, "wait")
    _wrap_completed(recorder, pending)
    _wrap_future(pending)
    for name in ("init_process_group", "new_group"):
        _wrap_rendezvous(recorder, name)


def _wrap_collective(
    recorder: Recorder,
    pending: dict[int, tuple[Any, int]],
    name: str,
    op: str,
    position: int | None,
) -> None:
    original = getattr(dist.ProcessGroup, name, None)
    if original is None:  # an older or newer torch has another set of methods
        return

    def wrapper(group: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = args[position] if position is not None and position < len(args) else ()
        call = recorder.enter(recorder.describe(op, group, tensors, **_details(op, group, args)))
        if op == "monitored_barrier":  # the one that blocks in the call itself
            recorder.report("wait", call)
        work = original(group, *args, **kwargs)
        if work is None:
            recorder.report("exit", call)
        else:
            pending[id(work)] = (work, call)
        return work

    setattr(dist.ProcessGroup, name, wrapper)


def _details(op: str, group: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return what else must agree: the root, the reduction, the peer and tag."""
    details: dict[str, Any] = {}
    members = dist.get_process_group_ranks(group)
    if op in ("send", "recv"):
        if len(args) == 3:
            details["peer"] = members[args[1]]
        details["tag"] = args[-1]
        return details
    for options in args:
        if hasattr(options, "rootRank"):
            details["root"] = members[options.rootRank]
        if hasattr(options, "reduceOp"):
            details["reduce"] = next(
                (name for name in REDUCTIONS if options.reduceOp == getattr(dist.ReduceOp, name)),
                None,
            )
    return details


def _wrap_wait(
    recorder: Recorder, pending: dict[int, tuple[Any, int]], owner: Any, name: str
) -> None:
    original = getattr(owner, name)

    def wrapper(work: Any, *args: Any, **kwargs: Any) -> Any:
        known = pending.get(id(work))
        if known is None:
            return original(work, *args, **kwargs)
        recorder.report("wait", known[1])
        result = original(work, *args, **kwargs)
        if pending.pop(id(work), None) is not None:
            recorder.report("exit", known[1])
        return result

    setattr(owner, name, wrapper)


def _wrap_completed(recorder: Recorder, pending: dict[int, tuple[Any, int]]) -> None:
    original = dist.Work.is_completed

    def is_completed(work: Any) -> bool:
        done = bool(original(work))
        if done and id(work) in pending:
            recorder.report("exit", pending.pop(id(work))[1])
        return done

    dist.Work.is_completed = is_completed  # type: ignore[method-assign, assignment]


def _wrap_future(pending: dict[int, tuple[Any, int]]) -> None:
    original = dist.Work.get_future

    def get_future(work: Any) -> Any:
        future = original(work)
        if id(work) in pending:
            pending[id(future)] = (future, pending.pop(id(work))[1])
        return future

    dist.Work.get_future = get_future  # type: ignore[method-assign, assignment]


def _wrap_rendezvous(recorder: Recorder, name: str) -> None:
    """Wrap a function in which all ranks of the world meet over the store."""
    original: Callable[..., Any] = getattr(distributed_c10d, name)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call = recorder.enter(recorder.describe(name, None))
        recorder.report("wait", call)
        result = original(*args, **kwargs)
        recorder.report("exit", call)
        return result

    for module in (dist, distributed_c10d):
        setattr(module, name, wrapper)


def _tensors_in(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def _other_threads() -> int:
    here = threading.current_thread()
    return sum(
        1
        for thread in threading.enumerate()
        if thread is not here
        and not str(getattr(getattr(thread, "_target", None), "__module__", "")).startswith(
            DATA_THREADS
        )
    )
