"""Ranks that differ after many steps, when known calls no longer wait for permission."""

import contextlib

import pytest
import torch
import torch.distributed as dist


def steps(count):
    """Make all calls of a training step `count` times, so that later ones need no permission."""
    for _ in range(count):
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(200_000))
        dist.broadcast(torch.ones(3), src=0)
        dist.broadcast(torch.ones(3), src=1)


def other_order(rank):
    sizes = (3, 200_000) if rank == 0 else (200_000, 3)
    for size in sizes:
        dist.all_reduce(torch.ones(size))


def other_collective(rank):
    if rank == 0:
        dist.broadcast(torch.ones(3), src=0)
    dist.all_reduce(torch.ones(3))


def other_source(rank):
    dist.broadcast(torch.ones(3), src=rank)


def nobody_waits(rank):
    works = [dist.all_reduce(torch.ones(3 if rank else 200_000), async_op=True)]
    works[0].is_completed()


def the_error_is_swallowed(rank):
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(3 if rank else 200_000))


@pytest.mark.parametrize(
    ("parting", "code", "names"),
    [
        (other_order, "shape-mismatch", "all_reduce #21"),
        (other_collective, "deadlock-order-differs", "broadcast #21 (3 x float32)"),
        (other_source, "wrong-source", "broadcast #21"),
        (nobody_waits, "shape-mismatch", "all_reduce #21 (200000 x float32, shape [200000])"),
        (the_error_is_swallowed, "shape-mismatch", "all_reduce #21 (3 x float32, shape [3])"),
    ],
)
def test_a_mismatch_of_repeated_calls_is_reported(failure_of, parting, code, names):
    def part(rank):
        steps(5)
        parting(rank)

    failure = failure_of(part)

    assert (failure.status, failure.diagnosis.code) == ("deadlock", code)
    assert names in failure.diagnosis.explanation


def test_a_rank_that_leaves_after_many_steps_is_named(failure_of):
    def leave(rank):
        steps(5 + (rank != 2))

    failure = failure_of(leave, 3)

    assert (failure.diagnosis.code, failure.diagnosis.ranks) == ("deadlock-rank-missing", (2,))


def test_a_rank_that_raises_after_many_steps_is_the_only_one_named(failure_of):
    def fall(rank):
        steps(5)
        if rank == 2:
            raise ValueError("one of many")
        dist.all_reduce(torch.ones(3 + rank))

    failure = failure_of(fall, 3)

    assert (failure.exception, failure.diagnosis.ranks) == ("ValueError", (2,))
