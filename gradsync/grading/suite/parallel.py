"""Trusted: run several tests of one suite at a time.

Ranks wait for each other, and the grader waits for the ranks: with one test at a time, the cores
are idle a third of the time. So the grader forks itself when all modules are imported, and each
process takes the next test that has not begun.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from gradsync.cores import available_cores
from gradsync.ranks import LauncherError
from gradsync.ranks.host.launchers.fork import ForkLauncher
from gradsync.ranks.sandbox.namespaces import end_with

MOST = 2  # tests with up to four ranks each
INDEX = 2  # bytes of a test's number
LAST_SECONDS = 300.0  # for the last test of a process, when the others have finished


def count_parallel_tests() -> int:
    """Return how many tests this process can run at a time.

    A process with several threads, such as a notebook's, must not fork: its children could inherit
    locks that are never released.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return min(available_cores(), MOST)


class Turns:
    """Hands out the numbers below `count` (at most 30,000), each to one process."""

    def __init__(self, count: int) -> None:
        self._next, numbers = os.pipe()  # a read takes a complete number, or none
        with os.fdopen(numbers, "wb") as pipe:
            pipe.write(b"".join(number.to_bytes(INDEX, "big") for number in range(count)))

    def __iter__(self) -> Iterator[int]:
        while taken := os.read(self._next, INDEX):
            yield int.from_bytes(taken, "big")

    def end(self) -> None:
        """Take all remaining numbers, so that no process begins another test."""
        for _ in self:
            pass

    def close(self) -> None:
        os.close(self._next)


class ForkedGrader:
    """A fork of this process that runs `work` with its own ranks, and returns the result."""

    def __init__(
        self, launcher: ForkLauncher, sibling: socket.socket, work: Callable[[], Any]
    ) -> None:
        fork = multiprocessing.get_context("fork")
        self._result, theirs = fork.Pipe(duplex=False)
        with theirs:
            arguments = (launcher, sibling, work, theirs, os.getpid())
            self._process = fork.Process(target=_work, args=arguments, daemon=True)
            self._process.start()

    def result(self) -> Any:
        """Wait for the return value of `work`.

        Raises:
            LauncherError: the process ended without a result.
        """
        try:
            if not self._result.poll(LAST_SECONDS):
                raise LauncherError(
                    f"a process that ran tests did not finish its last one in {LAST_SECONDS:g} s"
                )
            return self._result.recv()
        except EOFError:
            self._process.join()
            code = self._process.exitcode
            raise LauncherError(
                f"a process that ran tests ended without a result (exit status {code})"
            ) from None

    def close(self) -> None:
        self._result.close()
        self._process.kill()  # it has finished
        self._process.join()
        self._process.close()


@contextmanager
def forked_graders(
    count: int, launcher: ForkLauncher, work: Callable[[], Any]
) -> Iterator[list[ForkedGrader]]:
    """Run `work` in `count` further processes while the block runs."""
    started: list[ForkedGrader] = []
    try:
        for _ in range(count):
            with launcher.sibling() as sibling, _without_ctrl_c():
                started.append(ForkedGrader(launcher, sibling, work))
        yield started
    finally:
        for worker in started:
            worker.close()
        launcher.await_siblings()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Delay Ctrl-C until a new process is recorded: one without a record would run on.

    The new process is never interrupted: this one is, and then kills it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    launcher: ForkLauncher,
    sibling: socket.socket,
    work: Callable[[], Any],
    result: Connection,
    parent: int,
) -> None:
    end_with(parent)
    launcher.adopt(sibling)
    result.send(work())
