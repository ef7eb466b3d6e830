"""Classes for unittest with the surface of torch's own."""

import unittest

import pytest
import torch
import torch.distributed as dist

from gradsync.cases import RanksTestCase, skip_if_lt_x_gpu, with_comms


class Suite(RanksTestCase):
    """Written for DTensorTestBase, except for the base class."""

    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @with_comms
    def test_passes(self):
        total = torch.ones(2) * (self.rank + 1)
        dist.all_reduce(total)
        self.assertEqual(total, torch.full((2,), 3.0))  # noqa: PT009
        self.assertEqual(self.build_device_mesh().size(), self.world_size)  # noqa: PT009
        self.assertEqual(str(self.device), self.device_type)  # noqa: PT009

    @with_comms(eager_init=True)
    def test_fails_on_one_rank(self):
        self.assertEqual(torch.tensor(self.rank), torch.tensor(0))  # noqa: PT009

    def test_starts_its_own_group(self):
        dist.init_process_group(
            "gloo",
            init_method=f"file://{self.file_name}",
            rank=self.rank,
            world_size=self.world_size,
        )
        assert dist.get_rank() == self.rank

    def test_skips(self):
        self.skipTest("not today")

    @skip_if_lt_x_gpu(64)
    def test_needs_gpus(self):
        raise AssertionError

    @skip_if_lt_x_gpu(2, allow_cpu=True)
    def test_deadlocks(self):
        self.init_pg()
        if self.rank == 0:
            dist.barrier()


class Continuous(RanksTestCase):
    """Written for MultiProcContinuousTest, except for the base class and this line."""

    world_size = 2
    process_group = True

    def test_has_a_group(self):
        assert dist.get_rank(self.pg) == self.rank


for case in (Suite, Continuous):
    case.__test__ = False  # run by the test below, not by pytest

ENDS = {
    "Suite.test_passes": "passed",
    "Suite.test_fails_on_one_rank": "Tensor-likes are not equal|Scalars are not equal",
    "Suite.test_starts_its_own_group": "passed",
    "Suite.test_skips": "not today",
    "Suite.test_needs_gpus": "Need at least 64 CUDA devices",
    "Suite.test_deadlocks": "Rank 1 returned without calling barrier #1",
    "Continuous.test_has_a_group": "passed",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_test_ends_as_with_the_classes_of_torch(name):
    case, method = name.split(".")
    result = unittest.TestResult()

    globals()[case](method).run(result)

    texts = [text for _, text in (*result.errors, *result.failures, *result.skipped)]
    assert result.testsRun == 1 or result.skipped  # Python 3.12.1 does not count skipped tests
    assert any(part in "".join(texts or ["passed"]) for part in ENDS[name].split("|"))
