"""A pool of processes that do tasks in parallel; if one dies, only its task is lost.

The processes are separate programs, not children made by `multiprocessing` as in loky and pebble.
So a daemonic process, such as a worker of Dask, can start them too, and they don't run the parent's
main module again. In loky, one process that dies also ends the tasks of all others.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar, cast

from gradsync.ranks.host.launchers.launcher import command
from gradsync.ranks.sandbox.namespaces import end_with

Given = TypeVar("Given")
Result = TypeVar("Result")
Results = Iterator[tuple[Given, Result | None]]
DoOnce = Callable[[Iterable[Given], bool], Results[Given, Result]]
END_SECONDS = 10.0  # for an idle process to end its ranks' process and itself
# For a task. A submission with many endless loops takes a few minutes; only a process that was
# stopped or hangs takes longer.
TASK_SECONDS = 1200.0


class PoolProcess(Generic[Given, Result]):
    """A separate process that does one task after the other."""

    def __init__(self, work: Callable[[Given], Result]) -> None:
        """Start the process; `work` is a module-level function, which it imports by name."""
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        self.task: Given | None = None
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                command(__name__, number, os.getpid()),
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
            )
        self._timer: threading.Timer | None = None
        self._send(work)

    def begin(self, task: Given) -> None:
        """Send a task; a process that has not done it in time is killed."""
        self.task = task
        self._timer = threading.Timer(TASK_SECONDS, self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        self._send(task)

    def result(self) -> Result | None:
        """Wait for the result of the task, and return it, or None if the process died."""
        try:
            result = cast(Result, self.connection.recv())
        except (EOFError, OSError):
            return None
        finally:
            if self._timer is not None:
                self._timer.cancel()
        self.task = None
        return result

    def end(self) -> None:
        """Ask the process to end; kill it and its ranks if it is doing a task."""
        self.connection.close()
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self._process.kill()

    def close(self) -> None:
        """Wait until the process has ended."""
        self.end()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, message: object) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it died: `result` reports it
            self.connection.send(message)


def start(descriptor: int, parent: int) -> None:
    """Receive a module-level function, then its arguments one by one; send each result.

    Args:
        descriptor: the descriptor of a socket that is connected to the process `parent`.
        parent: the id of that process; this process ends when it ends.
    """
    if sys.platform == "linux":
        end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    os.set_inheritable(descriptor, False)  # ranks must not hold it open
    with Connection(descriptor) as tasks:
        work = tasks.recv()
        while True:
            try:
                task = tasks.recv()
            except EOFError:
                return
            tasks.send(work(task))


def in_pool(
    work: Callable[[Given], Result], tasks: Iterable[Given], count: int
) -> Results[Given, Result]:
    """Yield each task with its result when it is done, or with None if its process died twice.

    Args:
        work: a module-level function that never raises, and does not return None.
        tasks: its arguments, one for each call; each is taken when a process is free.
        count: number of processes.
    """
    return with_retry(lambda some, alone: _once(work, some, 1 if alone else count), tasks)


def with_retry(do_once: DoOnce[Given, Result], tasks: Iterable[Given]) -> Results[Given, Result]:
    """Do tasks; then do each task without a result once more, alone.

    Its process may have died because parallel tasks had used up the memory.

    Args:
        do_once: does some tasks, one at a time if its second argument is true. It yields each task
            with its result, or with None if the process died.
        tasks: the tasks.
    """
    lost: list[Given] = []
    for task, result in do_once(tasks, False):
        if result is None:
            lost.append(task)
        else:
            yield task, result
    yield from do_once(lost, True)


def _once(
    work: Callable[[Given], Result], tasks: Iterable[Given], count: int
) -> Results[Given, Result]:
    waiting = iter(tasks)
    idle: list[PoolProcess[Given, Result]] = []
    busy: list[PoolProcess[Given, Result]] = []
    finished: deque[tuple[Given, Result | None]] = deque()
    try:
        while True:
            while len(busy) < count and (task := next(waiting, None)) is not None:
                process = idle.pop() if idle else PoolProcess(work)
                busy.append(process)
                process.begin(task)
            if finished:
                yield finished.popleft()  # after all processes have work
                continue
            if not busy:
                return
            ready = wait([process.connection for process in busy])
            for process in [process for process in busy if process.connection in ready]:
                done, result = cast(Given, process.task), process.result()
                finished.append((done, result))
                busy.remove(process)
                if result is None:
                    process.close()
                else:
                    idle.append(process)
    finally:
        for process in (*busy, *idle):
            process.end()
        for process in (*busy, *idle):
            process.close()
