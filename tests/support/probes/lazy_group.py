"""A process group that connects as late as nccl does, for machines without nccl."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_process_group_name

COMMUNICATION = re.compile("_?all|_?reduce|barrier|broadcast|gather|recv|scatter|send")
RENAMED = {  # methods that gloo has only under their previous names
    "all_gather_single": "_allgather_base",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
}


class LazyGroup(dist.ProcessGroup):
    """A gloo group that connects to the other ranks only when the first collective needs it.

    A synchronous collective connects at once, an asynchronous one when its handle is used.
    """

    def __init__(self, store: Any, rank: int, world_size: int, timeout: timedelta) -> None:
        super().__init__(rank, world_size)  # type: ignore[call-arg]
        self.place = (store, rank, world_size, timeout)
        self.gloo: Any = None
        self.works: list[Any] = []  # C++ code may keep a work without its Python object

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "lazy"

    @property
    def group_name(self) -> str:  # type: ignore[override]
        """Return the name by which functional collectives find the group; torch sets none here."""
        return _get_process_group_name(self)

    def __getattribute__(self, name: str) -> Any:
        own = super().__getattribute__
        if not COMMUNICATION.match(name):
            return own(name)

        def communicate(*args: Any, **kwargs: Any) -> Any:
            def start() -> Any:
                self.gloo = own("gloo") or dist.ProcessGroupGloo(*own("place"))
                return getattr(self.gloo, RENAMED.get(name, name))(*args, **kwargs)

            options = (*args, *kwargs.values())
            later = any(getattr(option, "asyncOp", False) is True for option in options)
            if not later:
                return start()
            self.works.append(lazy_work(start))
            return self.works[-1]

        return communicate


def lazy_work(start: Callable[[], Any]) -> Any:
    """Return the handle of a collective that starts when the handle is first used.

    The class is made on the rank: pickle can't send it, because it does not find its metaclass.
    """
    started = functools.cache(start)

    class LazyWork(dist.Work):
        # C++ code calls these two, and they must be functions of Python.
        def wait(self, *limit: Any) -> Any:
            return started().wait(*limit)

        def get_future(self) -> Any:
            return started().get_future()

        def __getattribute__(self, name: str) -> Any:
            if name in ("wait", "get_future") or name.startswith("_"):
                return super().__getattribute__(name)
            return getattr(started(), name)

    return LazyWork()
