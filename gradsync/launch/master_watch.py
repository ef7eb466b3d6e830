"""Stop this node's ranks and its agent when the master can no longer be reached.

torch's agent does not do so: if the link is cut, its next request to the master's store waits until
the kernel closes the connection, which takes a quarter of an hour.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gradsync.launch.placement import CONNECT_SECONDS, Master

INTERVAL = 2.0  # seconds between two attempts
GRACE_SECONDS = 2.0  # from SIGTERM to SIGKILL of the ranks


def watch_master(master: Master, seconds: float, text: Callable[[], str], folder: str) -> None:
    """Start a thread that stops this process if the master can't be reached for `seconds`.

    Args:
        master: the node that accepts connections as long as the job runs.
        seconds: the longest time without a successful connection.
        text: returns the message to print before the process ends.
        folder: a temporary folder of this process, to be removed.
    """
    watch = threading.Thread(target=_watch, args=(master, seconds, text, folder), daemon=True)
    watch.start()


def _watch(master: Master, seconds: float, text: Callable[[], str], folder: str) -> None:
    seen = time.monotonic()
    while time.monotonic() - seen < seconds:
        time.sleep(INTERVAL)
        with suppress(OSError):
            socket.create_connection((master.address, master.port), CONNECT_SECONDS).close()
            seen = time.monotonic()
    print(f"gradsync: {text()}", file=sys.stderr, flush=True)
    _end_ranks()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)  # the main thread waits in the store, which no signal interrupts


def _end_ranks() -> None:
    ranks = [
        int(pid)
        for children in Path("/proc/self/task").glob("*/children")
        for pid in children.read_text().split()
    ]
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in ranks:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        if ranks and number == signal.SIGTERM:
            time.sleep(GRACE_SECONDS)
