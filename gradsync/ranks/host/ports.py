"""Trusted: choose a port for the ranks."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import SystemRandom


def free_port() -> int:
    """Return a random port on which no program listens: parallel runs rarely choose the same one.

    It is outside the range from which the system chooses a port for a program that requests any
    free port, as gloo does for each connection. So no such program can take it before the ranks do.

    Raises:
        OSError: no free port was found.
    """
    for port in SystemRandom().sample(range(10_000, 29_000), k=100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("None of 100 random ports between 10000 and 29000 is free.")
