"""The program of a worker: it does one task after the other for the process that started it."""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Connection

from gradsync.ranks.sandbox.namespaces import end_with


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
