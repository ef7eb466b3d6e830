"""Starting and ending the process group, with random timeouts and GPUs."""

import pytest

from gradsync.testing import exercise
from support.promises import group


@pytest.mark.parametrize("world_size", [1, 3])
@exercise("phase1/setup_distributed", points=2)
def test_the_group_has_every_rank(ranks, world_size):
    """After setup_distributed, the default group has all ranks, and uses gloo without a GPU."""
    group.group_of_every_rank(ranks, world_size)


@exercise("phase1/setup_distributed", points=1)
def test_setup_waits_for_every_rank(ranks):
    """setup_distributed waits for a late rank, even with a backend that connects lazily."""
    group.setup_waits(ranks)


@exercise("phase1/setup_distributed", points=1)
def test_backend_and_timeout_are_used(ranks, rng):
    """`backend` and `timeout` are used; the default timeout is 60 s; an existing GPU is used."""
    group.backend_and_timeout_used(ranks, seconds=int(rng.integers(5, 60)))
    group.own_gpu_used(ranks, local_rank=int(rng.integers(1, 8)))


@exercise("phase1/cleanup_distributed", points=1)
def test_cleanup_destroys_the_group(ranks):
    """After cleanup_distributed, no rank has a default process group."""
    group.group_destroyed(ranks)


@exercise("phase1/cleanup_distributed", points=1)
def test_cleanup_without_a_group_does_nothing(ranks):
    """cleanup_distributed may be called twice, and without a process group."""
    group.nothing_without_group(ranks)
