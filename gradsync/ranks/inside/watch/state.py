"""Untrusted side: the state that all wrappers of this process share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from gradsync.ranks.inside.watch import callers
from gradsync.ranks.inside.watch.handles import Handles, is_done
from gradsync.ranks.inside.watch.recorder import Recorder
from gradsync.ranks.inside.watch.tensors import strides_of, tensors_in
from gradsync.ranks.inside.watch.threads import THREADS, nothing
from gradsync.ranks.protocol import events
from gradsync.records import Collective

ENDLESS = 30.0  # seconds; a rank in a shorter wait is not blocked: it continues in any case


class Watch:
    """The shared state of the wrappers of one process; they do nothing before `begin`."""

    recorder: Recorder
    handles: Handles
    world_size = 0

    def begin(self, recorder: Recorder, world_size: int, roots: tuple[str, ...]) -> None:
        """Start to report; call this before a learner's module is imported."""
        self.recorder = recorder
        self.handles = Handles(recorder)
        self.world_size = world_size
        self.everyone = tuple(range(world_size))
        self._roots = roots
        THREADS.changed = recorder.report_waits

    def end(self) -> None:
        """Stop reporting: the process group is about to be replaced."""
        self.world_size = 0
        THREADS.changed = nothing

    @property
    def began(self) -> bool:
        return self.world_size > 0

    def calls_of(self, handle: Any) -> tuple[int, ...]:
        return self.handles.calls_of(handle) if self.began else ()

    def wait(self, handle: Any, wait: Callable[..., Any], *limit: timedelta | float) -> Any:
        """Call `wait`, which blocks until this work or future is complete, and report it."""
        calls = self.calls_of(handle)
        if self.began and id(handle) in self.handles.complete_early:
            self.handles.done(calls, touched=self.handles.touched(calls))
            return True
        if not calls:
            return wait(*limit)
        touched = self.handles.touched(calls)
        if not is_done(handle) and _seconds(*limit) >= ENDLESS:
            self.handles.wait(handle, calls)
        try:
            result = wait(*limit)
        except BaseException as error:
            if isinstance(error, Exception) and not is_done(handle):  # it timed out
                self.recorder.go_on(calls[-1])
            else:
                self.handles.done(calls, at_once=True)
            raise
        self.handles.done(calls, touched=touched)
        return result

    def saw_end(self, handle: Any) -> None:
        """Report that this rank knows that a work or future is complete."""
        if calls := self.calls_of(handle):
            self.handles.done(calls, touched=self.handles.touched(calls))

    def saw(self, handle: Any, *, complete: bool) -> None:
        """Report what this rank has just seen of a work or future."""
        if complete:
            self.saw_end(handle)
        elif self.calls_of(handle) and self.recorder.disturbances is not None:
            self.recorder.disturbances.polls()

    def follow(self, future: Any, handles: Iterable[Any]) -> None:
        """Remember that a future is complete only when all these works and futures are."""
        if calls := [call for handle in handles for call in self.calls_of(handle)]:
            self.handles.add(future, calls)

    def sees(self) -> bool:
        """Return whether the default group has the ranks of this run, with the same numbers."""
        return (
            self.began
            and dist.is_initialized()
            and dist.get_world_size() == self.world_size
            and dist.get_rank() == self.recorder.rank
        )

    def members(self, group: Any) -> tuple[int, ...] | None:
        """Return the ranks of a group, in its order, or None if they are unknown."""
        ranks = distributed_c10d._world.pg_group_ranks.get(group)
        return tuple(ranks) if ranks and self.sees() else None

    def may_block(self, limit: timedelta | float) -> bool:
        """Return whether this thread is about to block, as long as it can be seen."""
        return self.began and _seconds(limit) >= ENDLESS and not self.recorder.waits()

    def hold(self, at: str) -> None:
        """Block until it is this rank's turn; then calls that all ranks have started are complete.

        So what this rank sees of them does not depend on the speed of the machine.
        """
        self.handles.complete(self.recorder.hold(at))

    def describe(self, op: str, group: str, tensors: Any = (), **more: Any) -> Collective:
        flat = list(tensors_in(tensors))[: events.MAX_TENSORS]
        caller = callers.caller(self._roots, op, flat[0] if flat else None)
        return Collective(
            op=op,
            group=group,
            shapes=tuple(tuple(t.shape[: events.MAX_SIDES]) for t in flat),
            strides=strides_of(flat),
            dtype=str(flat[0].dtype).removeprefix("torch.") if flat else None,
            label=more.pop("label", caller.label),
            via=caller.via,
            where=caller.where,
            callers=caller.names,
            by_test=caller.by_test,
            after=caller.after,
            **more,
        )

    @contextmanager
    def blocking(self, collective: Collective) -> Iterator[None]:
        """Report a collective that blocks until it is complete."""
        call = self.recorder.enter(collective, waits=True)
        self.recorder.started(collective, call)
        try:
            yield
        finally:
            self.recorder.leave(call, at_once=True)


def _seconds(limit: timedelta | float | None = None) -> float:
    """Return the time limit of a wait: torch takes a timedelta, or seconds; 0 is no limit."""
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
    return seconds or math.inf
