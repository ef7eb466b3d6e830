"""The names that tests of a suite import."""

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
    """Return a random free port, so that runs side by side use different ports.

    It is outside the range from which the system assigns ports on request, as gloo does for each
    connection. Otherwise a connection could take the port before the ranks use it.

    Raises:
        OSError: no free port was found.
    """
    for port in SystemRandom().sample(range(10_000, 29_000), k=100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("none of 100 ports between 10000 and 29000 is free")
