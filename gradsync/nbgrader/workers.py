"""Processes that do tasks in parallel; if one dies, only its task is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Generic, TypeVar, cast

from gradsync.ranks.sandbox.namespaces import end_with

Task = TypeVar("Task")
Result = TypeVar("Result")


class Worker(Generic[Task, Result]):
    """A separate process that does one task after the other."""

    def __init__(self, work: Callable[[Task], Result]) -> None:
        spawn = multiprocessing.get_context("spawn")  # a fork would copy locks held by threads
        self.connection, theirs = spawn.Pipe()
        with theirs:
            self._process = spawn.Process(target=_serve, args=(work, theirs, os.getpid()))
            self._process.start()
        self.task: Task | None = None

    def begin(self, task: Task) -> None:
        self.task = task
        self.connection.send(task)

    def result(self) -> Result | None:
        """Return the result of the task, or None if the process died."""
        try:
            return cast(Result, self.connection.recv())
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        self.connection.close()
        self._process.kill()  # its ranks end with it
        self._process.join()


def side_by_side(
    work: Callable[[Task], Result], tasks: Iterable[Task], count: int
) -> Iterator[tuple[Task, Result | None]]:
    """Yield each task with its result when it is done, or with None if its process died.

    Args:
        work: a module-level function that never raises.
        tasks: its arguments, one for each call.
        count: number of processes.
    """
    waiting = list(tasks)[::-1]
    busy: list[Worker[Task, Result]] = []
    try:
        for _ in range(min(count, len(waiting))):
            busy.append(Worker(work))
            busy[-1].begin(waiting.pop())
        while busy:
            ready = wait([worker.connection for worker in busy])
            for worker in [worker for worker in busy if worker.connection in ready]:
                task, result = cast(Task, worker.task), worker.result()
                if result is None or not waiting:
                    busy.remove(worker)
                    worker.close()
                if waiting and result is None:
                    busy.append(worker := Worker(work))
                if waiting:
                    worker.begin(waiting.pop())
                yield task, result
    finally:
        for worker in busy:
            worker.close()


def _serve(work: Callable[[Task], Result], tasks: Connection, parent: int) -> None:
    end_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    while True:
        try:
            task = tasks.recv()
        except EOFError:
            return
        tasks.send(work(task))
