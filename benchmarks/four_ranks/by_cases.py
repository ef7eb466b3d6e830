"""The tests of by_multi_process.py; only the base class has changed."""

from __future__ import annotations

from benchmarks.four_ranks import by_multi_process
from benchmarks.four_ranks.cases import CASES
from gradsync.cases import RanksTestCase


class CollectivesTest(RanksTestCase):
    """Four new ranks for each test."""

    world_size = 4

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


for one in CASES:
    setattr(CollectivesTest, f"test_{one.__name__}", by_multi_process.method(one))
