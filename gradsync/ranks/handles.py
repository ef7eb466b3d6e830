"""Untrusted side: the works and futures by which a program learns that a collective is complete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from gradsync.ranks.recorder import Recorder

MANY = 64  # calls that nobody waited for, before those that are complete are let go
WORK_DONE = dist.Work.is_completed
FUTURE_DONE = torch._C.Future.done


class Handles:
    """Which handle stands for which call, for as long as the call is not known to be complete."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._calls: dict[int, int] = {}  # id of a handle -> call
        self._handles: dict[int, list[Any]] = {}  # call -> its handles: so long an id is theirs
        self._callbacks: Counter[int] = Counter()  # of a call, that have yet to run
        self._versions: dict[int, list[tuple[torch.Tensor, int]]] = {}  # call -> as it started
        self._many = MANY

    def call_of(self, handle: Any) -> int | None:
        return self._calls.get(id(handle))

    def add(self, handle: Any, call: int, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Remember that this work or future is complete when the call is.

        Args:
            handle: the work or future.
            call: the call.
            tensors: those whose version tells whether this rank changes them meanwhile.
        """
        if len(self._handles) >= self._many:
            self._let_go()
        if versions := [(tensor, tensor._version) for tensor in tensors]:
            self._versions[call] = versions
        self._calls[id(handle)] = call
        self._handles.setdefault(call, []).append(handle)

    def is_touched(self, call: int) -> bool:
        """Tell whether this rank itself has changed what is on its way: which is last is luck."""
        return any(tensor._version != then for tensor, then in self._versions.get(call, ()))

    def done(self, call: int, *, at_once: bool = False, touched: bool = False) -> None:
        """Report the end of a call, the first time that it shows."""
        if call in self._callbacks and not at_once:  # these may enter collectives of their own
            return
        handles = self._handles.pop(call, None)
        self._versions.pop(call, None)
        if handles is not None:
            for handle in handles:
                del self._calls[id(handle)]
            self.recorder.leave(call, at_once=at_once, touched=touched)

    def watched(self, call: int, callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a callback that runs when the call is complete, on a thread yet to come."""
        self._callbacks[call] += 1
        self.recorder.expect(call)

        def run(future: Any) -> Any:
            try:
                return callback(future)
            finally:
                self._callbacks[call] -= 1
                if not self._callbacks[call]:
                    del self._callbacks[call]
                    self.done(call)

        return run

    def _let_go(self) -> None:
        for call, handles in list(self._handles.items()):
            if is_done(handles[0]):
                self.done(call)
        self._many = max(MANY, 2 * len(self._handles))


def is_done(handle: Any) -> bool:
    return bool(FUTURE_DONE(handle) if isinstance(handle, torch._C.Future) else WORK_DONE(handle))
