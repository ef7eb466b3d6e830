"""The functions and markers that the tests of a suite use."""

import socket
from contextlib import suppress
from random import SystemRandom

import pytest

from gradsync.ranks.task import by_rank
from gradsync.testing.assertions import (
    Mistake,
    assert_on_every_rank,
    assert_rank_by_rank,
    case_by_case,
    check,
    check_no_deadlock,
    each,
    raise_mistake,
    seen_of,
)
from gradsync.testing.values import EXACT

__all__ = [
    "EXACT",
    "Mistake",
    "assert_on_every_rank",
    "assert_rank_by_rank",
    "by_rank",
    "case_by_case",
    "check",
    "check_no_deadlock",
    "each",
    "early",
    "exercise",
    "free_port",
    "raise_mistake",
    "seen_of",
]

exercise = pytest.mark.exercise
early = pytest.mark.early


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
