"""Untrusted side: a process group that reports each collective, then delegates it.

torch creates a `ProcessGroup` for each group and registers backends with it. Here it creates an
`ObservedProcessGroup`, which gives the same backends to a plain `ProcessGroup` and delegates to it.
So each collective is reported, however it is started: by `torch.distributed`, by C++ code (DDP,
functional collectives), from a hook or by a helper thread; and the program that runs is unchanged.
Each collective returns an `ObservedWork`, through which the rank waits for it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd import Variable, graph
from torch.distributed import GradBucket, distributed_c10d  # type: ignore[attr-defined]

from gradsync.ranks.inside.watch.callers import variables
from gradsync.ranks.inside.watch.state import Watch
from gradsync.ranks.inside.watch.tensors import (
    exchanged,
    gathered,
    versioned,
    with_own_versions,
)
from gradsync.records import Collective

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
UNEVEN_BACKENDS = {"nccl"}  # in an all_gather, each rank may have a tensor of another size
BLOCKS = {"monitored_barrier"}  # the call itself blocks, and returns no work
DELEGATED = (  # methods of a work that neither wait nor show whether it is complete
    *("exception", "is_success", "source_rank", "_source_rank", "synchronize", "boxed"),
    *("block_current_stream", "get_future_result", "_get_duration", "_get_op_type"),
)
REDUCTIONS = {
    getattr(dist.ReduceOp, name): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}
# C++ code that started a collective keeps the Python object of its work. Older versions of torch
# (2.6) keep only the C++ object, and a wait for that would never end.
WORKS_ARE_KEPT = hasattr(torch._C._distributed_c10d, "PythonCallbackWork")
PlainProcessGroup: Any = dist.ProcessGroup
BackendType: Any = dist.ProcessGroup.BackendType
ENGINE = graph.__file__  # of the Python frame that runs a backward pass


def install(watch: Watch) -> None:
    """Make torch create observed process groups from now on."""
    for name, (op, position) in COLLECTIVES.items():
        if hasattr(dist.ProcessGroup, name):  # other versions of torch have other methods
            setattr(ObservedProcessGroup, name, _observed(watch, name, op, position))
    for name in DELEGATED:
        setattr(ObservedWork, name, _delegated(name))
    for name in ("wait", "get_future"):
        _never_compile(getattr(ObservedWork, name))
    distributed_c10d.ProcessGroup = ObservedProcessGroup  # type: ignore[assignment, misc]
    _keep_works_of_ddp()


class ObservedProcessGroup(dist.ProcessGroup):
    """A process group that reports the collectives of `COLLECTIVES` before they start."""

    def __init__(self, *place: Any, plain: Any = None) -> None:
        """Make a group from a store, a rank and a size; a subclass may have no store."""
        # The constructor with a store can't make a subclass.
        super().__init__(*place[-2:])
        self.plain = plain or PlainProcessGroup(*place)

    def get_group_store(self) -> Any:
        return self.plain.get_group_store()

    def split_group(self, *args: Any, **kwargs: Any) -> ObservedProcessGroup | None:
        """Return a part of this group with its own communicators, as nccl can split them."""
        plain = self.plain.split_group(*args, **kwargs)
        if plain is None:  # this rank is not in the part
            return None
        part = ObservedProcessGroup(plain.rank(), plain.size(), plain=plain)
        part._set_group_name(plain.group_name)
        part._set_group_desc(plain.group_desc)
        for device in plain._device_types:
            backend = plain._get_backend(device)
            kind = getattr(BackendType, backend.name().upper(), BackendType.CUSTOM)
            dist.ProcessGroup._register_backend(part, device, kind, backend)
            dist.ProcessGroup._set_default_backend(part, kind)
        return part

    def _set_default_backend(self, backend_type: Any) -> None:
        super()._set_default_backend(backend_type)
        self.plain._set_default_backend(backend_type)

    def _register_backend(self, device: Any, backend_type: Any, backend: Any) -> None:
        super()._register_backend(device, backend_type, backend)
        self.plain._register_backend(device, backend_type, backend)


class ObservedWork(dist.Work):
    """The work of an observed collective: reports when this rank waits for it, or sees its end."""

    def __init__(self, watch: Watch, plain: dist.Work) -> None:
        super().__init__()
        self._watch = watch
        self.plain = plain

    def wait(self, timeout: timedelta | float = timedelta(0)) -> bool:
        return bool(self._watch.wait(self.plain, self.plain.wait, timeout))

    def get_future(self) -> Any:
        future = self.plain.get_future()
        self._watch.follow(future, [self.plain])
        return future

    def is_completed(self) -> bool:
        completed = self.plain.is_completed()
        self._watch.saw(self.plain, complete=completed)
        return completed

    def result(self) -> list[torch.Tensor]:
        result = self.plain.result()  # raises while the collective is incomplete
        self._watch.saw_end(self.plain)
        return result


def _keep_works_of_ddp() -> None:
    """Keep the work that DDP's reducer gets: an object that only C++ refers to loses its methods.

    In torch's `Join`, the reducer waits for a collective that Python has started.
    """
    reducer: Any = dist.Reducer  # type: ignore[attr-defined]
    original = reducer._set_forward_pass_work_handle
    kept: WeakKeyDictionary[Any, ObservedWork] = WeakKeyDictionary()

    def keep(reducer: Any, work: ObservedWork, *args: Any) -> None:
        kept[reducer] = work
        original(reducer, work, *args)

    reducer._set_forward_pass_work_handle = keep


def _never_compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Exclude a function, and what it calls, from torch.compile: C++ code of DDP may call it."""
    frames: Any = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):  # older versions of torch have none
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))
    return function


def _delegated(name: str) -> Callable[..., Any]:
    def method(work: ObservedWork, *args: Any, **kwargs: Any) -> Any:
        return getattr(work.plain, name)(*args, **kwargs)

    return method


def _observed(watch: Watch, name: str, op: str, position: int | None) -> Callable[..., Any]:
    """Return the method that reports a collective and delegates it."""

    def collective(group: ObservedProcessGroup, *args: Any, **kwargs: Any) -> Any:
        start = getattr(group.plain, name)
        members = watch.members(group)
        if members is None:
            return start(*args, **kwargs)
        at = position if position is not None and position < len(args) else len(args)
        tensors, others = args[at : at + 1], (*args[:at], *args[at + 1 :])
        details = _details(op, members, args)
        if op == "all_gather" and distributed_c10d.get_backend(group) in UNEVEN_BACKENDS:
            details["receives"], details["sends"] = gathered(*args[:2])
        described = watch.describe(op, group.group_name, tensors, members=members, **details)
        waits = op in BLOCKS or any(getattr(o, "asyncOp", None) is False for o in args)
        if not waits:
            args = (*args[:at], *with_own_versions(tensors), *args[at + 1 :])
        call, plain = _start(watch, described, lambda: start(*args, **kwargs), waits=waits)
        if plain is None:
            watch.recorder.leave(call)
            return None
        work = ObservedWork(watch, plain)
        changing = [] if waits else versioned(tensors, others)
        watch.handles.begin(plain, call, changing, keep=None if WORKS_ARE_KEPT else work)
        if _is_awaited_by_ddp(sys._getframe().f_back):
            # DDP waits for it in C++ when the pass ends: wait just before, where it is reported.
            Variable._execution_engine.queue_callback(work.wait)  # type: ignore[arg-type]
        if watch.recorder.disturbances is not None and not waits:
            watch.recorder.disturbances.after()
        return work

    return _never_compile(collective)


def _start(
    watch: Watch, collective: Collective, start: Callable[[], Any], *, waits: bool
) -> tuple[int, Any]:
    """Report a collective and start it; return its number on this rank, and its work."""
    call = watch.recorder.enter(collective, waits=waits)
    blocks = collective.op in BLOCKS
    if blocks:
        watch.recorder.started(collective, call)
    try:
        return call, start()
    except BaseException:
        watch.recorder.leave(call, at_once=True)
        raise
    finally:
        if not blocks:
            watch.recorder.started(collective, call)


def _details(op: str, members: tuple[int, ...], args: tuple[Any, ...]) -> dict[str, Any]:
    """Return further arguments that must agree: root, reduction, peer, tag, and sizes by rank."""
    details: dict[str, Any] = {}
    if op in ("send", "recv"):
        if len(args) == 3:
            if not 0 <= args[1] < len(members):  # gloo would wait for it for ever
                raise ValueError(f"{op}: there is no rank {args[1]} in a group of {len(members)}")
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


def _is_awaited_by_ddp(caller: FrameType | None) -> bool:
    """Return whether DDP's reducer made the call, directly or through a communication hook.

    The reducer is C++ code that runs in a backward pass, on the pass's own thread or, with a GPU,
    on a thread without Python. So the pass is the caller, or the hook, which gets a bucket.
    """
    outermost = None
    while caller is not None and caller.f_code.co_filename != ENGINE:
        outermost, caller = caller, caller.f_back
    if outermost is None:
        return True
    return any(isinstance(value, GradBucket) for value in variables(outermost))
