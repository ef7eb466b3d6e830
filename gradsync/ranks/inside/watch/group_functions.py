"""Untrusted side: the functions that begin and end process groups, reported like collectives."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradsync.ranks.inside.watch.state import Watch


def install(watch: Watch) -> None:
    """Wrap these functions."""
    _wrap(watch, "init_process_group", "init_process_group", _world)
    # All functions that create groups call it; they may have been imported by name.
    _wrap(watch, "_new_group_with_tag", "new_group", _founders)
    _wrap(watch, "destroy_process_group", "destroy_process_group", _leavers)


def _wrap(
    watch: Watch, name: str, op: str, who: Callable[[Watch, dict[str, Any]], tuple[int, ...] | None]
) -> None:
    original: Callable[..., Any] = getattr(distributed_c10d, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def meet(*args: Any, **kwargs: Any) -> Any:
        members = who(watch, _by_name(signature, args, kwargs)) if watch.began else None
        if members is None:
            return original(*args, **kwargs)
        collective = watch.describe(op, f"{op} {members}", members=members)
        with watch.blocking(collective):
            return original(*args, **kwargs)

    for module in (dist, distributed_c10d):
        if hasattr(module, name):
            setattr(module, name, meet)


def _world(watch: Watch, arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the ranks that meet in `init_process_group`, or None for a different world size."""
    size = arguments.get("world_size", -1)
    given = str(size) if type(size) is int and size > 0 else os.environ.get("WORLD_SIZE", "")
    return watch.everyone if given in ("", str(watch.world_size)) else None


def _founders(watch: Watch, arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """Return the ranks that meet in `new_group`: all, unless it synchronises locally."""
    if not watch.sees():
        return None
    ranks = arguments.get("ranks")
    if arguments.get("use_local_synchronization") and ranks:
        return tuple(sorted(ranks))
    return watch.everyone


def _leavers(watch: Watch, arguments: dict[str, Any]) -> tuple[int, ...] | None:
    """Return this rank if destroying all groups must wait for incomplete collectives, or None."""
    everything = arguments.get("group") in (None, distributed_c10d.GroupMember.WORLD)
    if not (everything and watch.sees() and watch.handles.pending()):
        return None
    return (watch.recorder.rank,)


def _by_name(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    try:
        return signature.bind(*args, **kwargs).arguments
    except TypeError:  # the call itself will raise
        return {}
