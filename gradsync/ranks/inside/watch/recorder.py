"""Untrusted side: report which collectives this rank enters, waits for and leaves."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from typing import Any

from gradsync.ranks.inside.watch.disturbances import Disturbances
from gradsync.ranks.inside.watch.threads import THREADS
from gradsync.ranks.protocol import events, wire
from gradsync.ranks.protocol.events import LOOSE_OPS, MAIN_THREAD
from gradsync.records import Collective, Event, EventKind

LOOK_SECONDS = 0.05  # between two looks at the other threads of a rank that waits
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
        self.disturbances: Disturbances | None = None
        self._calls = 0
        self._writer = events.Writer()
        self._backlog: list[list[Any]] = []
        self._waits: dict[int, int] = {}  # thread (negative: a future one) -> the call it waits for
        self._known: set[tuple[Any, ...]] = set()  # kinds of collectives that were permitted once
        self._urgent: set[int] = set()  # calls that may complete before all ranks have arrived
        self._lock = threading.RLock()  # a destructor may end a thread while this one reports
        self._starting: dict[object, deque[int]] = {}  # group -> calls that have not started yet
        self._next = threading.Condition(self._lock)
        self._replies = threading.RLock()  # only one thread at a time reads from the channel
        self._looks = False  # whether a thread looks for bystanders
        self._returned = False  # the rank's function has; its threads may still work

    def enter(self, collective: Collective, *, waits: bool) -> int:
        """Report the collective, block until it may start, and return its number on this rank.

        With `waits`, the thread blocks until the collective is complete. The next collective of the
        group may start after `started` is called: if several threads use a group, the order of
        their calls is the order of the reports.
        """
        if self.disturbances is None:
            return self._enter(collective, waits=waits)
        self.disturbances.before(collective)
        with self._replies:  # another thread that waits for its turn would read this one's reply
            return self._enter(collective, waits=waits)

    def _enter(self, collective: Collective, *, waits: bool) -> int:
        kind = _kind(collective)
        with self._lock:
            call = self._calls
            self._calls += 1
            from_anyone = collective.op == "recv" and collective.peer is None
            if collective.op in LOOSE_OPS or from_anyone:
                self._urgent.add(call)
            self._add("enter", call, collective)
            others = self._wait(call) if waits else 0
            asks = kind not in self._known
            starting = self._starting.setdefault(_order(collective, call), deque())
            starting.append(call)
            self._flush(asks=asks)
        try:
            if asks:
                with self._replies:
                    self.await_go()
                self._known.add(kind)
            if starting[0] != call:
                with self._next:
                    self._next.wait_for(lambda: starting[0] == call)
        except BaseException:  # a notebook's cell has ended
            self.started(collective, call)
            raise
        self._look_at(others)
        return call

    def started(self, collective: Collective, call: int) -> None:
        """Let the next collective of this group start."""
        with self._next:
            starting = self._starting[_order(collective, call)]
            starting.remove(call)
            if not starting:
                del self._starting[_order(collective, call)]
            self._next.notify_all()

    def hold(self, at: str) -> list[int]:
        """Block until it is this rank's turn; return its calls that all ranks have started."""
        with self._replies:
            self.send(wire.pack("held", {"at": at}))
            frame = wire.receive(self._channel)
            if frame is None:  # the trusted side has ended
                os._exit(1)
        return list(frame.header["started"])

    def await_go(self) -> None:
        """Block until the trusted side permits this rank to continue."""
        if not self._channel.recv(1):  # the trusted side has ended
            os._exit(1)

    def wait(self, call: int) -> None:
        """Report that this thread blocks until the call is complete."""
        with self._lock:
            if self._waits.get(threading.get_ident()) != call:
                others = self._wait(call)
                self._flush()
                self._look_at(others)

    def waits(self) -> bool:
        """Return whether this thread is reported as waiting."""
        return threading.get_ident() in self._waits

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

    def report_waits(self) -> None:
        """Report again that threads wait, because fewer other threads can act."""
        with self._lock:
            for waiting, call in self._waits.items():
                self._add("wait", call, thread=waiting)
            if self._waits:
                self._flush()

    def join(self, threads: list[str]) -> None:
        """Report that the rank's function has returned, and that the rank waits for threads."""
        self.send(wire.pack("joining", {"threads": threads}))
        self._returned = True
        self._begin_to_look()

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Send a frame other than an event."""
        with self._lock:
            self._flush()
            for part in parts:
                self._channel.sendall(part)

    def _wait(self, call: int) -> int:
        self._waits[threading.get_ident()] = call
        return self._add("wait", call).others

    def _look_at(self, others: int) -> None:
        """Start to look for bystanders, if so many other threads are able that they matter."""
        if self._waits and others >= len(self._waits):
            self._begin_to_look()

    def _begin_to_look(self) -> None:
        if not self._looks:
            self._looks = True
            threading.Thread(target=self._look_on, daemon=True).start()

    def _look_on(self) -> None:
        while THREADS.changed == self.report_waits:  # until another recorder reports
            time.sleep(LOOK_SECONDS)
            acts = THREADS.acts
            waiting = {thread for thread in list(self._waits) if thread >= 0}
            main = threading.main_thread().ident or 0
            if self._returned:
                waiting.add(main)
            if waiting and THREADS.find_bystanders(waiting, acts):
                self.report_waits()
            if self._returned and not self._waits and not THREADS.able(main):
                self.send(wire.pack("idle"))
                return

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
        if kind != "wait":
            THREADS.act()
        event = Event(
            rank=self.rank,
            kind=kind,
            call=call,
            seconds=time.monotonic() - self._began,
            thread=MAIN_THREAD if thread == threading.main_thread().ident else thread,
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
        """Count the other threads that could still enter a collective, and those to come."""
        to_come = sum(other < 0 and other != thread for other in self._waits)
        return to_come + THREADS.able(thread)


def _order(collective: Collective, call: int) -> object:
    """Return what calls must share to start in order: messages may start in any order."""
    return call if collective.op in ("send", "recv") else collective.group


def _kind(call: Collective) -> tuple[Any, ...]:
    """Return all properties in which it must agree with the other ranks' calls."""
    place = (call.op, call.group, call.root, call.peer, call.tag)
    return (*place, call.shapes, call.dtype, call.reduce, call.sends, call.receives)
