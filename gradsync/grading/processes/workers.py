"""Processes that do tasks in parallel; if one dies, only its task is lost.

The workers are programs of their own, not children made by `multiprocessing`: a daemonic process,
such as a worker of Dask, may start them too, and they don't run the parent's main module again.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar, cast

from gradsync.grading.processes import worker_program
from gradsync.ranks.host.launcher import command

Task = TypeVar("Task")
Result = TypeVar("Result")
END_SECONDS = 10.0  # for an idle process to end its ranks' process and itself


class Worker(Generic[Task, Result]):
    """A separate process that does one task after the other."""

    def __init__(self, work: Callable[[Task], Result]) -> None:
        """Start the process; `work` is a module-level function, which it imports by name."""
        ours, theirs = socket.socketpair()
        self.connection = Connection(ours.detach())
        self.task: Task | None = None
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                command(worker_program.__name__, number, os.getpid()),
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
            )
        self._send(work)

    def begin(self, task: Task) -> None:
        self.task = task
        self._send(task)

    def result(self) -> Result | None:
        """Wait for the result of the task, and return it, or None if the process died."""
        try:
            result = cast(Result, self.connection.recv())
        except (EOFError, OSError):
            return None
        self.task = None
        return result

    def end(self) -> None:
        """Tell the process to end; one that is doing a task is killed, and its ranks with it."""
        self.connection.close()
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


def side_by_side(
    work: Callable[[Task], Result], tasks: Iterable[Task], count: int
) -> Iterator[tuple[Task, Result | None]]:
    """Yield each task with its result when it is done.

    A task whose process died is done once more at the end, alone, as the tasks beside it may have
    taken the memory. If the process dies again, its result is None.

    Args:
        work: a module-level function that never raises, and does not return None.
        tasks: its arguments, one for each call; each is taken when a process is free.
        count: number of processes.
    """
    lost: list[Task] = []
    for task, result in _once(work, tasks, count):
        if result is None:
            lost.append(task)
        else:
            yield task, result
    yield from _once(work, lost, 1)


def _once(
    work: Callable[[Task], Result], tasks: Iterable[Task], count: int
) -> Iterator[tuple[Task, Result | None]]:
    waiting = iter(tasks)
    idle: list[Worker[Task, Result]] = []
    busy: list[Worker[Task, Result]] = []
    finished: deque[tuple[Task, Result | None]] = deque()
    try:
        while True:
            while len(busy) < count and (task := next(waiting, None)) is not None:
                worker = idle.pop() if idle else Worker(work)
                busy.append(worker)
                worker.begin(task)
            if finished:
                yield finished.popleft()  # after all processes have work
                continue
            if not busy:
                return
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                done, result = cast(Task, worker.task), worker.result()
                finished.append((done, result))
                busy.remove(worker)
                if result is None:
                    worker.close()
                else:
                    idle.append(worker)
    finally:
        for worker in (*busy, *idle):
            worker.end()
        for worker in (*busy, *idle):
            worker.close()
