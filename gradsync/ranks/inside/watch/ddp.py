"""Untrusted side: start the collectives of DistributedDataParallel where they can be reported.

DDP starts them in C++. Here a communication hook averages the buckets with plain calls, as DDP does
without a hook, and waits at the end of backward, where DDP waits.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gradsync.ranks.inside.watch.state import Watch

Future = torch.futures.Future[torch.Tensor]
Hook = Callable[[Any, Any], Future]


class _Buckets:
    """Averages the buckets of one DDP, or calls the hook that the program registered."""

    def __init__(self, owner: DistributedDataParallel) -> None:
        self._owner = weakref.ref(owner)
        self.group: Any = owner.process_group
        self._registered: tuple[Hook, Any] | None = None
        self.next_forward_meets = False  # it broadcasts the order in which gradients were ready

    def register(self, state: Any, hook: Hook) -> None:
        if self._registered is not None:
            raise RuntimeError("a communication hook can only be registered once")
        self._registered = hook, state

    def register_builtin(self, kind: Any) -> None:
        compresses = kind.name == "FP16_COMPRESS"
        hook: Any = default_hooks.fp16_compress_hook if compresses else default_hooks.allreduce_hook
        self.register(self.group, hook)

    def reduce(self, bucket: Any) -> Future:
        """Start to average a bucket; return a future of its gradients."""
        owner: Any = self._owner()
        self.next_forward_meets = not (
            owner._has_rebuilt_buckets or (owner.find_unused_parameters and not owner.static_graph)
        )
        if self._registered is not None:
            hook, state = self._registered
            return hook(state, bucket)
        buffer = bucket.buffer()
        count = float(self.group.size())
        if not getattr(owner, "_divide_by_initial_world_size", True):  # an option of torch's Join
            # 0: this rank has joined.
            at_work = torch.tensor(float(_at_the_end_of_backward(lambda: None)))
            dist.all_reduce(at_work, group=self.group)
            count = at_work.item()
        buffer.mul_(1 / count)  # as in DDP; a division may differ in the last bit
        work: Any = dist.all_reduce(buffer, group=self.group, async_op=True)
        _at_the_end_of_backward(work.wait)
        future: Future = work.get_future().then(lambda done: done.value()[0])
        return future


def _at_the_end_of_backward(call: Callable[[], Any]) -> bool:
    """Make the running backward call a function at its end; return whether one is running."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(call)
    except RuntimeError:
        return False
    return True


def install(watch: Watch) -> None:
    """Wrap the functions that DDP calls."""
    known: weakref.WeakKeyDictionary[Any, _Buckets] = weakref.WeakKeyDictionary()  # by reducer
    _wrap_start(watch, known)
    _wrap_registration(known, "_register_comm_hook", _Buckets.register)
    _wrap_registration(known, "_register_builtin_comm_hook", _Buckets.register_builtin)
    _wrap_rebuilding(watch, known)
    _wrap_blocking(watch, "_verify_params_across_processes", _verification)
    _wrap_blocking(watch, "_broadcast_coalesced", _broadcast)


def _wrap_start(watch: Watch, known: weakref.WeakKeyDictionary[Any, _Buckets]) -> None:
    """Wrap the method that creates a DDP's reducer, even when it is unpickled."""
    owner, native = cast("Any", DistributedDataParallel), cast("Any", dist)
    original, register = owner._ddp_init_helper, native._register_comm_hook

    @functools.wraps(original)
    def wrapper(ddp: Any, *args: Any, **kwargs: Any) -> None:
        original(ddp, *args, **kwargs)
        if watch.began:
            buckets = _Buckets(ddp)
            register(ddp.reducer, None, lambda _, bucket: buckets.reduce(bucket))
            known[ddp.reducer] = buckets

    owner._ddp_init_helper = wrapper


def _wrap_registration(
    known: weakref.WeakKeyDictionary[Any, _Buckets], name: str, method: Callable[..., None]
) -> None:
    original = getattr(dist, name)

    @functools.wraps(original)
    def wrapper(reducer: Any, *args: Any) -> None:
        if reducer in known:
            method(known[reducer], *args)
        else:
            original(reducer, *args)

    setattr(dist, name, wrapper)


def _wrap_rebuilding(watch: Watch, known: weakref.WeakKeyDictionary[Any, _Buckets]) -> None:
    """Wrap a method of the forward pass, in which ranks agree on new buckets once."""
    native = cast("Any", dist).Reducer
    original = native._rebuild_buckets

    @functools.wraps(original)
    def wrapper(reducer: Any) -> bool:
        buckets = known.get(reducer)
        members = watch.members(buckets.group) if buckets else None
        if buckets is None or members is None or not buckets.next_forward_meets:
            return bool(original(reducer))
        buckets.next_forward_meets = False
        name = buckets.group.group_name
        with watch.blocking(watch.describe("DistributedDataParallel", name, members=members)):
            return bool(original(reducer))

    native._rebuild_buckets = wrapper


def _wrap_blocking(watch: Watch, name: str, describe: Callable[..., dict[str, Any]]) -> None:
    """Wrap a C++ function that blocks until its collectives are complete."""
    original = getattr(dist, name)

    @functools.wraps(original)
    def wrapper(group: Any, *args: Any) -> Any:
        members = watch.members(group)
        if members is None:
            return original(group, *args)
        details = describe(members, *args)
        with watch.blocking(watch.describe(group=group.group_name, members=members, **details)):
            return original(group, *args)

    setattr(dist, name, wrapper)


def _verification(_members: tuple[int, ...], *_: Any) -> dict[str, Any]:
    return {"op": "DistributedDataParallel"}


def _broadcast(
    members: tuple[int, ...], tensors: Any, _size: int, source: int = 0
) -> dict[str, Any]:
    return {"op": "broadcast", "tensors": tensors, "root": members[source]}
