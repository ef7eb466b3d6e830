"""The tests with the `ranks` fixture."""

from __future__ import annotations

import pytest

from benchmarks.four_ranks.cases import CASES


@pytest.mark.parametrize("case", CASES)
def test_case(ranks, case):
    ranks(case, world_size=4)
