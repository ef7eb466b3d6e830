"""Untrusted side: report which collectives this rank enters, waits for and leaves."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradsync.ranks.protocol import events, wire
from gradsync.ranks.protocol.events import LOOSE_OPS
from gradsync.records import Collective, Event, EventKind

# Modules of threads that never call a user's function. torch.compile starts tqdm's monitor.
NOT_TRAINING = (
    *("torch.utils.data.", "gradsync.ranks.", "tqdm."),
    *("multiprocessing.queues.", "multiprocessing.resource_sharer."),
)
MAX_BACKLOG = events.MAX_BATCH // 2  # events that may wait to be sent with the next one


class Recorder:
    """Sends this rank's events; it reports each collective before the collective starts.

    The first collective of a kind starts when the trusted side permits it. Later ones start
    immediately: a training loop makes the same calls thousands of times, and each request costs two
    context switches. If the ranks then differ, the events show it.

    Entering a collective and waiting are reported immediately. Leaving one is reported with the
    next event: the trusted side assumes that it completes once all ranks have entered it.
    """

    def __init__(self, channel: socket.socket, rank: int, began: float) -> None:
        self._channel = channel
        self.rank = rank
        self._began = began
        self._calls = 0
        self._writer = events.Writer()
        self._backlog: list[list[Any]] = []
        self._waits: dict[int, int] = {}  # thread (negative: a future one) -> the call it waits for
        self._known: set[tuple[Any, ...]] = set()  # kinds of collectives that were permitted once
        self._urgent: set[int] = set()  # calls that may complete before all ranks have arrived
        # The threads that `threading` does not list: their numbers, or an object before they run.
        self._bare: set[object] = set()
        # thread -> the thread that it waits for in `join`
        self._asleep: dict[int, threading.Thread] = {}
        self._lock = threading.Lock()

    def enter(self, collective: Collective, *, waits: bool) -> int:
        """Report the collective, block until it may start, and return its number on this rank.

        With `waits`, the thread blocks until the collective is complete.
        """
        with self._lock:
            call = self._calls
            self._calls += 1
            from_anyone = collective.op == "recv" and collective.peer is None
            if collective.op in LOOSE_OPS or from_anyone:
                self._urgent.add(call)
            self._add("enter", call, collective)
            if waits:
                self._wait(call)
            kind = _kind(collective)
            self._flush(asks=kind not in self._known)
            if kind not in self._known:
                self.await_go()
                self._known.add(kind)
        return call

    def await_go(self) -> None:
        """Block until the trusted side permits this rank to continue."""
        if not self._channel.recv(1):  # the trusted side has ended
            os._exit(1)

    def wait(self, call: int) -> None:
        """Report that this thread blocks until the call is complete."""
        with self._lock:
            if self._waits.get(threading.get_ident()) != call:
                self._wait(call)
                self._flush()

    def go_on(self, call: int) -> None:
        """Report that this thread no longer blocks, though the call is not complete."""
        with self._lock:
            if self._waits.pop(threading.get_ident(), None) is not None:
                self._add("go_on", call)
                self._flush()

    def expect(self, call: int) -> None:
        """Report that a new thread will act when the call is complete."""
        with self._lock:
            self._waits[-1 - call] = call
            self._add("wait", call, thread=-1 - call)

    def leave(self, call: int, *, at_once: bool = False, touched: bool = False) -> None:
        """Report that the call is over; `at_once` if it may not be complete, as after an error.

        `touched` means that this rank changed the input before it knew that the call was complete.
        """
        with self._lock:
            self._waits = {thread: c for thread, c in self._waits.items() if c != call}
            event = self._add("exit", call, touched=touched)
            if at_once or event.others or call in self._urgent or len(self._backlog) >= MAX_BACKLOG:
                self._flush()
            self._urgent.discard(call)

    @contextmanager
    def asleep(self, joined: threading.Thread) -> Iterator[None]:
        """Mark this thread as waiting for another thread of this process to end."""
        thread = threading.get_ident()
        with self._lock:
            self._asleep[thread] = joined
            self._report_waits()
        try:
            yield
        finally:
            with self._lock:
                self._asleep.pop(thread, None)
                self._report_waits()

    def start_bare(
        self, start: Callable[..., int], function: Callable[..., Any], *arguments: Any
    ) -> int:
        """Call `start(function, *arguments)`, which starts a thread that `threading` does not list.

        The thread counts as one that could enter a collective, from now on until it ends.
        """
        new = object()

        def run(*args: Any, **kwargs: Any) -> Any:
            thread = threading.get_ident()
            with self._lock:
                self._bare ^= {new, thread}
            try:
                return function(*args, **kwargs)
            finally:
                with self._lock:
                    self._bare.discard(thread)

        with self._lock:
            self._bare.add(new)
        try:
            return start(run, *arguments)
        except (RuntimeError, TypeError):  # too many threads; unsuitable arguments
            with self._lock:
                self._bare.discard(new)
            raise

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send a frame other than an event."""
        with self._lock:
            self._flush()
            for part in parts:
                self._channel.sendall(part)

    def _report_waits(self) -> None:
        for waiting, call in self._waits.items():
            self._add("wait", call, thread=waiting)
        self._flush()

    def _wait(self, call: int) -> None:
        self._waits[threading.get_ident()] = call
        self._add("wait", call)

    def _add(
        self,
        kind: EventKind,
        call: int,
        collective: Collective | None = None,
        thread: int | None = None,
        *,
        touched: bool = False,
    ) -> Event:
        thread = threading.get_ident() if thread is None else thread
        event = Event(
            rank=self.rank,
            kind=kind,
            call=call,
            seconds=time.monotonic() - self._began,
            thread=thread,
            others=self._others(thread),
            collective=collective,
            touched=touched,
        )
        self._backlog.append(self._writer.row(event))
        return event

    def _flush(self, *, asks: bool = False) -> None:
        if self._backlog:
            self._channel.sendall(wire.pack("events", {"events": self._backlog, "asks": asks}))
            self._backlog.clear()

    def _others(self, thread: int) -> int:
        """Count the other threads that could still enter a collective."""
        to_come = sum(other < 0 and other != thread for other in self._waits)
        training = {other for other in threading.enumerate() if _trains(other)}
        # A thread in `join` can act as soon as the other thread has ended.
        here = [t for t in training if t.ident != thread and self._joined_by(t) not in training]
        return to_come + len(here) + len(self._bare - {thread})

    def _joined_by(self, thread: threading.Thread) -> threading.Thread | None:
        return self._asleep.get(thread.ident or 0)


def _trains(thread: threading.Thread) -> bool:
    """Return whether a thread could enter a collective."""
    if isinstance(thread, threading._DummyThread):  # bare, or torch's: see `expect`
        return False
    runs = getattr(thread, "_target", None) or type(thread)  # a function, or a class with `run`
    return not f"{getattr(runs, '__module__', '')}.".startswith(NOT_TRAINING)


def _kind(call: Collective) -> tuple[Any, ...]:
    """Return all properties in which it must agree with the other ranks' calls."""
    place = (call.op, call.group, call.root, call.peer, call.tag)
    return (*place, call.shapes, call.dtype, call.reduce, call.sends, call.receives)
