"""What the tests of a suite are written with."""

import socket

import pytest

from gradsync.diagnose.confusions import differs_from_one_process, would_be
from gradsync.diagnose.values import EXACT
from gradsync.judge import (
    Mistake,
    assert_on_every_rank,
    assert_rank_by_rank,
    blame,
    check,
    each,
    hold,
)
from gradsync.ranks.inputs import by_rank

__all__ = [
    "EXACT",
    "Mistake",
    "assert_on_every_rank",
    "assert_rank_by_rank",
    "blame",
    "by_rank",
    "check",
    "differs_from_one_process",
    "each",
    "early",
    "exercise",
    "free_port",
    "hold",
    "would_be",
]

exercise = pytest.mark.exercise
early = pytest.mark.early


def free_port() -> int:
    """Return a port that nobody listens on: never a fixed one, so that runs never meet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
