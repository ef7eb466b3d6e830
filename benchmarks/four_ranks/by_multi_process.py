"""The tests with torch's MultiProcessTestCase, which spawns the ranks of each test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase

from benchmarks.four_ranks.cases import CASES, Case


class CollectivesTest(MultiProcessTestCase):
    """Four spawned processes and a new process group for each test."""

    @property
    def world_size(self) -> int:
        return 4

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def tearDown(self) -> None:
        super().tearDown()
        Path(self.file_name).unlink(missing_ok=True)


def method(case: Case) -> Callable[[CollectivesTest], None]:
    """Return a test method that starts a process group and runs `case`."""

    def test(self: CollectivesTest) -> None:
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        case(self.rank, self.world_size)

    return test


for one in CASES:
    setattr(CollectivesTest, f"test_{one.__name__}", method(one))
