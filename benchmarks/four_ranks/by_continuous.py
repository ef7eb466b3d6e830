"""The tests with torch's MultiProcContinuousTest, whose ranks run all tests of a class."""

from __future__ import annotations

from collections.abc import Callable

from torch.testing._internal.common_distributed import MultiProcContinuousTest

from benchmarks.four_ranks.cases import CASES, Case


class CollectivesTest(MultiProcContinuousTest):
    """Four processes and one process group, which the tests share."""

    world_size = 4

    @classmethod
    def backend_str(cls) -> str:
        return "gloo"

    @classmethod
    def device_type(cls) -> str:
        return "cpu"


def method(case: Case) -> Callable[[CollectivesTest], None]:
    """Return a test method that runs `case` in the group of the class."""

    def test(self: CollectivesTest) -> None:
        case(self.rank, self.world_size)

    return test


for one in CASES:
    setattr(CollectivesTest, f"test_{one.__name__}", method(one))
