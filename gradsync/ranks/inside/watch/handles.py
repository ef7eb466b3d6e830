"""Untrusted side: track the works and futures of collectives that are not complete."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from gradsync.ranks.inside.watch.recorder import Recorder

SWEEP_FROM = 64  # if so many calls are open, complete ones are searched for and dropped
WORK_DONE = dist.Work.is_completed
FUTURE_DONE = torch._C.Future.done
WORK_WAIT = dist.Work.wait
FUTURE_WAIT = torch._C.Future.wait
CALLBACK_SECONDS = 10.0  # for the callbacks of complete calls to return


class Handles:
    """Maps handles to the calls that they wait for, until these are known to be complete.

    Callbacks run on threads of torch, so several threads change these maps.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._lock = threading.RLock()  # never held while this thread waits for other ranks
        self._calls: dict[int, dict[int, None]] = {}  # id of a handle -> calls, in order
        # call -> its handles; keeps them alive, so that ids are not reused
        self._handles: dict[int, list[Any]] = {}
        self._callbacks: Counter[int] = Counter()  # call -> callbacks that have not finished
        self._reporting = 0  # threads that are reporting the end of calls
        # call -> its tensors, and their versions when it started
        self._versions: dict[int, list[tuple[torch.Tensor, int]]] = {}
        self._many = SWEEP_FROM
        self.complete_early: dict[int, Any] = {}  # works that the program may still wait for
        self._kept: dict[int, Any] = {}  # call -> an object that lives as long as the call is open

    def calls_of(self, handle: Any) -> tuple[int, ...]:
        """Return the open calls that are complete when the handle is."""
        with self._lock:
            return tuple(self._calls.get(id(handle), ()))

    def begin(
        self, handle: Any, call: int, tensors: Iterable[torch.Tensor] = (), *, keep: Any = None
    ) -> None:
        """Remember the first handle of a call.

        Args:
            handle: the work of the call.
            call: the number of the call.
            tensors: tensors whose version shows whether this rank changes them in the meantime.
            keep: an object to keep until this rank knows that the call is complete.
        """
        if len(self._handles) >= self._many:
            self._drop_complete()
        versions = [(tensor, tensor._version) for tensor in tensors]
        with self._lock:
            if versions:
                self._versions[call] = versions
            if keep is not None:
                self._kept[call] = keep
            self._handles[call] = []
            self.add(handle, [call])

    def add(self, handle: Any, calls: Iterable[int]) -> None:
        """Remember that this work or future is complete only when all these calls are."""
        with self._lock:
            for call in calls:
                if call not in self._handles:  # it is already known to be complete
                    continue
                known = self._calls.setdefault(id(handle), {})
                if call not in known:
                    known[call] = None
                    self._handles[call].append(handle)

    def touched(self, calls: Iterable[int]) -> set[int]:
        """Return the calls whose tensors this rank has changed: the outcome is a race."""
        return {
            call
            for call in calls
            if any(tensor._version != then for tensor, then in self._versions.get(call, ()))
        }

    def wait(self, handle: Any, calls: Sequence[int]) -> None:
        """Report that this thread blocks on the handle, which needs all these calls."""
        for call in calls[:-1]:  # a thread can be reported as waiting for one call only
            first = self._handles.get(call, [handle])[0]
            if not is_done(first):
                self.recorder.wait(call)
                with suppress(Exception):  # the program gets the error from its own handle
                    (FUTURE_WAIT if isinstance(first, torch._C.Future) else WORK_WAIT)(first)
        self.recorder.wait(calls[-1])

    def complete(self, calls: Iterable[int]) -> None:
        """Wait until these calls are complete, without a report.

        A message of gloo can be waited for only once.
        """
        for call in calls:
            for handle in self._handles.get(call, ())[:1]:
                if id(handle) not in self.complete_early:
                    with suppress(Exception):  # the program gets the error when it waits
                        WORK_WAIT(handle)
                        self.complete_early[id(handle)] = handle

    def pending(self) -> bool:
        """Return whether a collective that has started is not complete yet."""
        return any(not is_done(handle) for _, handle in self._first_handles())

    def done(
        self, calls: Iterable[int], *, at_once: bool = False, touched: Collection[int] = ()
    ) -> None:
        """Report that calls are complete, when this is first known."""
        with self._lock:
            ended = self._drop(calls, despite_callbacks=at_once)
        self._report(ended, at_once=at_once, touched=touched)

    def watched(self, calls: Sequence[int], callback: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap a callback that runs on a new thread when the calls are complete."""
        with self._lock:
            calls = [call for call in calls if call in self._handles]
            self._callbacks.update(calls)
        for call in calls:
            self.recorder.expect(call)

        def run(future: Any) -> Any:
            try:
                return callback(future)
            finally:
                with self._lock:
                    self._callbacks -= Counter(calls)  # drops those that reach 0
                    ended = self._drop(calls)
                self._report(ended)

        return run

    def settle(self) -> None:
        """Wait until the ends of all complete calls are reported.

        Torch wakes the threads that wait for a future before it runs the future's callbacks. So the
        program may return before they have started, or while they run.
        """
        until = time.monotonic() + CALLBACK_SECONDS
        while self._is_unsettled() and time.monotonic() < until:
            time.sleep(0.001)

    def _first_handles(self) -> list[tuple[int, Any]]:
        with self._lock:
            return [(call, handles[0]) for call, handles in self._handles.items()]

    def _is_unsettled(self) -> bool:
        with self._lock:
            due = [handle for call in self._callbacks for handle in self._handles.get(call, ())]
            return self._reporting > 0 or any(map(is_done, due))

    def _drop(self, calls: Iterable[int], *, despite_callbacks: bool = False) -> list[int]:
        """Forget these calls, and return those whose end must now be reported."""
        ended = []
        for call in calls:
            if call in self._callbacks and not despite_callbacks:
                continue  # the callbacks may enter further collectives
            handles = self._handles.pop(call, None)
            self._versions.pop(call, None)
            self._kept.pop(call, None)
            if handles is not None:
                ended.append(call)
                for handle in handles:
                    self._forget(handle, call)
        self._reporting += bool(ended)
        return ended

    def _report(
        self, ended: Sequence[int], *, at_once: bool = False, touched: Collection[int] = ()
    ) -> None:
        for call in ended:
            self.recorder.leave(call, at_once=at_once, touched=call in touched)
        with self._lock:
            self._reporting -= bool(ended)

    def _forget(self, handle: Any, call: int) -> None:
        calls = self._calls[id(handle)]
        del calls[call]
        if not calls:
            del self._calls[id(handle)]

    def _drop_complete(self) -> None:
        for call, handle in self._first_handles():
            if call not in self._kept and is_done(handle):
                self.done([call])
        self._many = max(SWEEP_FROM, 2 * len(self._handles))


def is_done(handle: Any) -> bool:
    return bool(FUTURE_DONE(handle) if isinstance(handle, torch._C.Future) else WORK_DONE(handle))
