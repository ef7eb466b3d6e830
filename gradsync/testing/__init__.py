"""The functions and markers that the tests of a suite use."""

import pytest

from gradsync.ranks.host.ports import free_port
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
from gradsync.testing.traffic import assert_collectives, assert_no, bytes_by_group, bytes_by_op
from gradsync.testing.values import EXACT

__all__ = [
    "EXACT",
    "Mistake",
    "assert_collectives",
    "assert_no",
    "assert_on_every_rank",
    "assert_rank_by_rank",
    "by_rank",
    "bytes_by_group",
    "bytes_by_op",
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
