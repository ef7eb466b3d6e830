"""Untrusted side: report every collective of this rank to the trusted side, before it starts.

Every function of `torch.distributed`, whatever it is called through (a name imported early, an
object collective, a hook, a helper thread), ends in a method of `ProcessGroup`, and every wait in
`Work.wait`. Those are wrapped, nothing above them. Functional collectives, and so DTensor's, are
led there too. Only what else C++ starts stays unseen: the buckets of DistributedDataParallel.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradsync.ranks import events, frames, functional
from gradsync.ranks.handles import Handles, is_done
from gradsync.ranks.recorder import Recorder
from gradsync.ranks.tensors import tensors_in, versioned
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
BLOCKS = {"monitored_barrier"}  # in the call itself: it returns no handle to wait for
REDUCTIONS = {
    getattr(dist.ReduceOp, name): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}


class Watch:
    """What the wrappers of one process share; until it begins they let everything pass."""

    recorder: Recorder
    handles: Handles
    world_size = 0

    def begin(self, recorder: Recorder, world_size: int, roots: tuple[str, ...]) -> None:
        """Report from now on; call it before a learner's module is imported."""
        self.recorder = recorder
        self.handles = Handles(recorder)
        self.world_size = world_size
        self.everyone = tuple(range(world_size))
        self._roots = roots

    def end(self) -> None:
        """Report nothing more: the group is about to be replaced."""
        self.world_size = 0

    @property
    def began(self) -> bool:
        return self.world_size > 0

    def call_of(self, handle: Any) -> int | None:
        return self.handles.call_of(handle) if self.began else None

    def sees(self) -> bool:
        """Tell whether the default group is this run's world, its ranks numbered alike."""
        return (
            self.began
            and dist.is_initialized()
            and dist.get_world_size() == self.world_size
            and dist.get_rank() == self.recorder.rank
        )

    def members(self, group: Any) -> tuple[int, ...] | None:
        """Return the ranks of a group, in its order; None for one that can't be followed."""
        ranks = distributed_c10d._world.pg_group_ranks.get(group)
        return tuple(ranks) if ranks and self.sees() else None

    def describe(self, op: str, group: str, tensors: Any = (), **more: Any) -> Collective:
        flat = list(tensors_in(tensors))[: events.MAX_TENSORS]
        where, label = frames.caller(self._roots, flat[0] if flat else None)
        return Collective(
            op=op,
            group=group,
            shapes=tuple(tuple(t.shape[: events.MAX_SIDES]) for t in flat),
            dtype=str(flat[0].dtype).removeprefix("torch.") if flat else None,
            label=label,
            where=where,
            **more,
        )


@functools.cache  # once in a process: ranks that are forked have it from the start
def install() -> Watch:
    """Wrap the methods."""
    watch = Watch()
    functional.install()
    for name, (op, position) in COLLECTIVES.items():
        if hasattr(dist.ProcessGroup, name):  # an older or newer torch has another set of methods
            _wrap_collective(watch, name, op, position)
    for owner in (dist.Work, torch._C.Future):
        _wrap_wait(watch, owner)
    _wrap_poll(watch, dist.Work, "is_completed")
    _wrap_poll(watch, torch._C.Future, "done")
    _wrap_future(watch)
    _wrap_callback(watch, "then")
    _wrap_callback(watch, "add_done_callback")
    _wrap_rendezvous(watch, "init_process_group", _world)
    _wrap_rendezvous(watch, "new_group", _founders)
    _wrap_join(watch)
    return watch


def _wrap_collective(watch: Watch, name: str, op: str, position: int | None) -> None:
    original = getattr(dist.ProcessGroup, name)

    def wrapper(group: Any, *args: Any, **kwargs: Any) -> Any:
        members = watch.members(group)
        if members is None:
            return original(group, *args, **kwargs)
        tensors = args[position] if position is not None and position < len(args) else ()
        details = _details(op, members, args)
        collective = watch.describe(op, group.group_name, tensors, members=members, **details)
        waits = op in BLOCKS or any(getattr(o, "asyncOp", None) is False for o in args)
        call = watch.recorder.enter(collective, waits=waits)
        try:
            work = original(group, *args, **kwargs)
        except BaseException:
            watch.recorder.leave(call, at_once=True)
            raise
        if work is None:
            watch.recorder.leave(call)
        else:
            others = [arg for arg in args if arg is not tensors]
            watch.handles.add(work, call, [] if waits else versioned(op, tensors, others))
        return work

    setattr(dist.ProcessGroup, name, wrapper)


def _details(op: str, members: tuple[int, ...], args: tuple[Any, ...]) -> dict[str, Any]:
    """Return what else must agree: the root, the reduction, the peer and tag."""
    details: dict[str, Any] = {}
    if op in ("send", "recv"):
        if len(args) == 3:
            details["peer"] = members[args[1]]
        details["tag"] = args[-1]
        return details
    for options in args:
        if hasattr(options, "rootRank"):
            details["root"] = members[options.rootRank]
        if hasattr(options, "reduceOp"):
            details["reduce"] = REDUCTIONS.get(getattr(options.reduceOp, "op", options.reduceOp))
    return details


def _wrap_wait(watch: Watch, owner: Any) -> None:
    original = owner.wait

    def wrapper(handle: Any, *args: Any, **kwargs: Any) -> Any:
        call = watch.call_of(handle)
        if call is None:
            return original(handle, *args, **kwargs)
        touched = watch.handles.is_touched(call)
        if not is_done(handle):
            watch.recorder.wait(call)
        try:
            result = original(handle, *args, **kwargs)
        except BaseException:
            watch.handles.done(call, at_once=True)
            raise
        watch.handles.done(call, touched=touched)
        return result

    owner.wait = wrapper


def _wrap_poll(watch: Watch, owner: Any, name: str) -> None:
    original = getattr(owner, name)

    def wrapper(handle: Any) -> bool:
        done = bool(original(handle))
        call = watch.call_of(handle)
        if done and call is not None:
            watch.handles.done(call, touched=watch.handles.is_touched(call))
        return done

    setattr(owner, name, wrapper)


def _wrap_future(watch: Watch) -> None:
    original = dist.Work.get_future

    def wrapper(work: Any) -> Any:
        future = original(work)
        call = watch.call_of(work)
        if call is not None:
            watch.handles.add(future, call)
        return future

    dist.Work.get_future = wrapper  # type: ignore[method-assign, assignment]


def _wrap_callback(watch: Watch, name: str) -> None:
    original = getattr(torch._C.Future, name)

    def wrapper(future: Any, callback: Callable[[Any], Any]) -> Any:
        call = watch.call_of(future)
        if call is None:
            return original(future, callback)
        chained = original(future, watch.handles.watched(call, callback))
        if chained is not None and watch.call_of(future) == call:
            watch.handles.add(chained, call)
        return chained

    setattr(torch._C.Future, name, wrapper)


def _wrap_rendezvous(
    watch: Watch, name: str, who: Callable[[Watch, dict[str, Any]], tuple[int, ...] | None]
) -> None:
    """Wrap a function in which ranks meet over the store."""
    original: Callable[..., Any] = getattr(distributed_c10d, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        members = who(watch, _by_name(signature, args, kwargs)) if watch.began else None
        if members is None:
            return original(*args, **kwargs)
        collective = watch.describe(name, f"{name} {members}", members=members)
        call = watch.recorder.enter(collective, waits=True)
        try:
            return original(*args, **kwargs)
        finally:
            watch.recorder.leave(call, at_once=True)

    for module in (dist, distributed_c10d):
        setattr(module, name, wrapper)


def _world(watch: Watch, arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """Return who meets in `init_process_group`; None for another world than this run's."""
    size = arguments.get("world_size", -1)
    told = str(size) if type(size) is int and size > 0 else os.environ.get("WORLD_SIZE", "")
    return watch.everyone if told in ("", str(watch.world_size)) else None


def _founders(watch: Watch, arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """Return who meets in `new_group`: everyone, members or not, unless they agreed otherwise."""
    if not watch.sees():
        return None
    ranks = arguments.get("ranks")
    if arguments.get("use_local_synchronization") and ranks:
        return tuple(sorted(ranks))
    return watch.everyone


def _by_name(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError:  # the call itself will say so
        return {}


def _wrap_join(watch: Watch) -> None:
    """Wrap `Thread.join`: whoever is in there can't enter a collective before the other ends."""
    original = threading.Thread.join

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        if timeout is not None or not watch.began:
            return original(thread, timeout)
        with watch.recorder.asleep():
            return original(thread)

    threading.Thread.join = join  # type: ignore[method-assign, assignment]
