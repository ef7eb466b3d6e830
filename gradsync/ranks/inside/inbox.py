"""Untrusted side: receive the messages for a notebook's rank, and end a running cell.

A separate thread reads the channel, because other threads may wait for permission to start a
collective while the main thread waits for the next cell, or is busy.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from threading import Condition  # not the class that observes what the user's threads wait for
from typing import Any

import torch
from torch.distributed import distributed_c10d

from gradsync.ranks.protocol import wire

SIGNAL_SECONDS = 0.05  # between two signals to a main thread that does not stop
# Until all ranks have received the end of the cell, and gloo has sent its data. A deadlock is found
# as soon as a rank enters a collective, so gloo may still be sending. If gloo's own thread then
# finds a connection closed, it loses the message, and the thread that waits for it never wakes up.
NOTICE_SECONDS = 0.03
MESSAGE_SECONDS = 0.2  # for a message to be sent and received


class CellEnded(KeyboardInterrupt):
    """The running cell must end: it can't continue, or the user stopped it."""


class Inbox:
    """Receives commands for the main thread, permissions for collectives, and the end of a cell."""

    def __init__(self, channel: socket.socket) -> None:
        self.commands: queue.SimpleQueue[wire.Frame] = queue.SimpleQueue()
        self._channel = channel
        self._changed = Condition()
        self._go = 0  # permissions for collectives that are not used yet
        self._ended = False  # the cell, and all calls on this process group
        # Whether the main thread may be interrupted. The main thread itself clears it, without a
        # call: in a call, Python could handle one more signal.
        self.running = False
        self._sent: list[Any] = []  # keeps the handles of sent messages until the next group
        signal.signal(signal.SIGINT, self._interrupt)
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self) -> None:
        """Allow the main thread to be interrupted from now on, until it clears `running`.

        Raises:
            CellEnded: the cell has already been ended.
        """
        self.running = True
        if self._ended:
            raise CellEnded

    def await_go(self) -> None:
        """Block until the trusted side permits a collective to start.

        Raises:
            CellEnded: the cell has been ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._go or self._ended)
            if self._ended:
                raise CellEnded
            self._go -= 1

    @property
    def ended(self) -> bool:
        """Return whether a cell was stopped since the last process group started."""
        return self._ended

    def begin_group(self) -> None:
        """Allow collectives again, on a new process group."""
        self._go, self._ended = 0, False
        self._sent.clear()

    def _interrupt(self, *_: object) -> None:
        if self.running:
            raise CellEnded

    def _listen(self) -> None:
        while first := self._channel.recv(1):
            if first == wire.GO:  # no frame begins with this byte: the frame would be too long
                with self._changed:
                    self._go += 1
                    self._changed.notify()
                continue
            frame = wire.receive(self._channel, first)
            if frame is None:
                break
            if frame.kind == "end":
                self._end(frame.header)
            elif frame.kind == "wake":
                threading.Event().wait(NOTICE_SECONDS)
                self._send(frame.header["messages"])
            else:
                self.commands.put(frame)
        os._exit(0)  # the notebook has ended, or replaces this rank

    def _end(self, header: dict[str, Any]) -> None:
        """Wake the threads that wait for permission, then those in gloo, then the main thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        waiting = threading.Event()
        if header["await"]:  # a rank that only a message can wake must be interrupted before it
            self._signal()
        waiting.wait(NOTICE_SECONDS)
        if header["await"]:
            self._send(header["messages"])
            until = time.monotonic() + MESSAGE_SECONDS
            while self.running and time.monotonic() < until:
                waiting.wait(SIGNAL_SECONDS / 10)
        close_connections()
        while self.running:  # a program may catch the exception, and continue
            waiting.wait(SIGNAL_SECONDS / 10)
            self._signal()
            waiting.wait(SIGNAL_SECONDS)

    def _signal(self) -> None:
        if self.running:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def _send(self, messages: list[list[Any]]) -> None:
        for group, to, tag in messages:
            with suppress(Exception):  # the group or the connection no longer exists
                self._sent.append(send_nothing(group, to, tag))


def send_nothing(name: str, to: int, tag: int) -> Any:
    """Send an empty message to a rank of a group, without waiting; return its handle."""
    for group, ranks in list(distributed_c10d._world.pg_group_ranks.items()):
        if group.group_name == name:
            backend: Any = group._get_backend(torch.device("cpu"))
            return backend.send([torch.empty(0)], ranks[to], tag)
    return None


def close_connections() -> None:
    """Cut this process's TCP connections, so that all threads that wait in gloo raise.

    Listening sockets stay open: gloo ends a process whose listening socket fails.
    """
    for entry in list(Path("/dev/fd").iterdir()):
        with suppress(OSError):  # closed in the meantime, or not a connection
            descriptor = int(entry.name)
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6):
                    end.getpeername()
                    end.shutdown(socket.SHUT_RDWR)
