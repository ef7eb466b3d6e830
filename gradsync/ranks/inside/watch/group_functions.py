"""Untrusted side: functions that begin and end process groups, or wait for a store's keys.

They are reported like collectives.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d, rpc

from gradsync.ranks.inside.watch.state import Watch
from gradsync.ranks.inside.watch.threads import THREADS

_meets: ContextVar[bool] = ContextVar("meets", default=False)
Met = tuple[tuple[int, ...], tuple[int, ...]] | None  # the ranks that meet, and a list of ranks


def install(watch: Watch) -> None:
    """Wrap these functions."""
    torch_modules = dist, distributed_c10d
    _wrap(watch, torch_modules, "init_process_group", "init_process_group", _world)
    # All functions that create groups call it; they may have been imported by name.
    _wrap(watch, torch_modules, "_new_group_with_tag", "new_group", _founders)
    _wrap(watch, torch_modules, "split_group", "split_group", _parts)
    _wrap(watch, torch_modules, "destroy_process_group", "destroy_process_group", _leavers)
    if rpc.is_available():
        _wrap(watch, (rpc, rpc.api), "shutdown", "rpc.shutdown", _workers)
        _count_remote_calls("_invoke_rpc_python_udf", lambda future: future)
        _count_remote_calls("_invoke_remote_python_udf", lambda reference: reference._get_future())
    _meet_in_new_group()
    _wrap_store(watch, "wait")
    _wrap_store(watch, "get")


def _wrap(
    watch: Watch,
    modules: tuple[Any, ...],
    name: str,
    op: str,
    who: Callable[[Watch, dict[str, Any]], Met],
) -> None:
    original: Callable[..., Any] = getattr(modules[-1], name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def meet(*args: Any, **kwargs: Any) -> Any:
        met = who(watch, _by_name(signature, args, kwargs)) if watch.began else None
        if met is None:
            return original(*args, **kwargs)
        members, ranks = met
        collective = watch.describe(op, f"{op} {members}", members=members, ranks=ranks)
        before = _meets.set(op == "new_group")
        try:
            with watch.blocking(collective):
                return original(*args, **kwargs)
        finally:
            _meets.reset(before)

    for module in modules:
        if hasattr(module, name):
            setattr(module, name, meet)


def _meet_in_new_group() -> None:
    """Make `new_group` wait for all ranks, as torch does with TORCH_DIST_INIT_BARRIER=1.

    A rank that does not call it is then found on every run, not only if the others are slow.
    """
    original = distributed_c10d._is_barrier_after_init
    distributed_c10d._is_barrier_after_init = lambda: int(_meets.get()) or original()


def _count_remote_calls(name: str, future_of: Callable[[Any], Any]) -> None:
    """Wrap a function that starts a call on another rank: until it ends, it is like a thread.

    There it may enter collectives, on a thread of torch that is not counted.
    """
    original = getattr(rpc.api, name, None)
    if original is None:  # private names, which may change
        return

    def start(*args: Any) -> Any:
        with ExitStack() as stack:
            stack.enter_context(THREADS.bare(object()))
            started = original(*args)
            unfinished = stack.pop_all()
        future_of(started).add_done_callback(lambda _: unfinished.close())
        return started

    setattr(rpc.api, name, start)


def _wrap_store(watch: Watch, name: str) -> None:
    """Wrap a method of a store that blocks until other ranks have set its keys."""
    store_class: Any = dist.Store  # type: ignore[attr-defined]
    original = getattr(store_class, name)

    def method(store: Any, keys: Any, *limit: timedelta) -> Any:
        wanted = [keys] if isinstance(keys, str) else list(keys)
        blocks = watch.may_block(*limit or (store.timeout,)) and _is_ours(watch, store)
        if not blocks or store.check(wanted):
            return original(store, keys, *limit)
        unset = [key for key in wanted if len(wanted) == 1 or not store.check([key])]
        label = f"{'all of the keys' if len(unset) > 1 else 'the key'} {', '.join(unset)}"
        collective = watch.describe("store.wait", "store", members=watch.everyone, label=label)
        with watch.blocking(collective):
            return original(store, keys, *limit)

    setattr(store_class, name, method)


def _is_ours(watch: Watch, store: Any) -> bool:
    """Return whether this is the default group's store: other processes may know any other one."""
    return watch.sees() and _innermost(store) is _innermost(distributed_c10d._get_default_store())


def _innermost(store: Any) -> Any:
    return getattr(store, "_underlying_non_prefix_store", store)


def _world(watch: Watch, arguments: dict[str, Any]) -> Met:
    """Return the ranks that meet in `init_process_group`, or None for a different world size."""
    size = arguments.get("world_size", -1)
    given = str(size) if type(size) is int and size > 0 else os.environ.get("WORLD_SIZE", "")
    return (watch.everyone, ()) if given in ("", str(watch.world_size)) else None


def _founders(watch: Watch, arguments: dict[str, Any]) -> Met:
    """Return the ranks that meet in `new_group`: all, unless it synchronises locally."""
    if not watch.sees():
        return None
    ranks = tuple(sorted(arguments.get("ranks") or watch.everyone))
    local = arguments.get("use_local_synchronization")
    return ranks if local else watch.everyone, ranks


def _parts(watch: Watch, arguments: dict[str, Any]) -> Met:
    """Return the ranks that meet in `split_group`, and its lists, each followed by -1."""
    members = watch.members(arguments.get("parent_pg") or dist.group.WORLD)
    lists = arguments.get("split_ranks") or []
    if members is None:
        return None
    return members, tuple(rank for part in lists for rank in (*part, -1))


def _workers(watch: Watch, arguments: dict[str, Any]) -> Met:
    """Return the ranks that meet in rpc's `shutdown`, or None if it does not wait for others."""
    api: Any = rpc.api
    if not (arguments.get("graceful", True) and api._is_current_rpc_agent_set()):
        return None
    agent = api._get_current_rpc_agent()
    here = agent.get_worker_info().id == watch.recorder.rank
    everyone = len(agent.get_worker_infos()) == watch.world_size
    return (watch.everyone, ()) if here and everyone else None


def _leavers(watch: Watch, arguments: dict[str, Any]) -> Met:
    """Return this rank if it ends all groups, or None."""
    everything = arguments.get("group") in (None, distributed_c10d.GroupMember.WORLD)
    if not (everything and watch.sees()):
        return None
    return (watch.recorder.rank,), ()


def _by_name(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError:  # the call itself will raise
        return {}
