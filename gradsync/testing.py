"""What the tests of a suite are written with."""

import socket
from contextlib import suppress
from random import SystemRandom

import pytest

from gradsync.diagnose.confusions import differs_from_one_process, would_be
from gradsync.diagnose.values import EXACT
from gradsync.judge import (
    Mistake,
    assert_on_every_rank,
    assert_rank_by_rank,
    blame,
    case_by_case,
    check,
    each,
    hold,
    hold_together,
    seen_of,
)
from gradsync.ranks.inputs import by_rank

__all__ = [
    "EXACT",
    "Mistake",
    "assert_on_every_rank",
    "assert_rank_by_rank",
    "blame",
    "by_rank",
    "case_by_case",
    "check",
    "differs_from_one_process",
    "each",
    "early",
    "exercise",
    "free_port",
    "hold",
    "hold_together",
    "seen_of",
    "would_be",
]

exercise = pytest.mark.exercise
early = pytest.mark.early


def free_port() -> int:
    """Return a port that nobody listens on: never a fixed one, so that runs never meet.

    It is none of those that a system gives to programs that ask for any, as gloo does for each
    connection: one of them could have it before the ranks do.

    Raises:
        OSError: no port could be had.
    """
    for port in SystemRandom().sample(range(10_000, 29_000), k=100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("none of 100 ports between 10000 and 29000 is free")
