"""The graph of a deadlock: the ranks that each rank waits for, and the calls."""

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks


def graph_of(function, world_size, **options):
    with pytest.raises(RankFailure) as caught:
        run_ranks(function, world_size, **options)
    rows = caught.value.observation.failure.graph
    assert all(f"\n  {row}" in str(caught.value) for row in rows)
    return rows


def test_a_rank_that_returned_is_waited_for_by_the_others(here):
    def skip(rank):
        if rank != 1:
            dist.all_reduce(torch.ones(5))  # here

    assert graph_of(skip, 3) == (
        f"rank 0 -> rank 1: all_reduce #1 at {here(skip)}",
        "rank 1 has returned",
        f"rank 2 -> rank 1: all_reduce #1 at {here(skip)}",
    )


def test_a_cycle_of_receives_is_seen(here):
    def receive(rank, world_size):
        dist.recv(torch.ones(1), (rank - 1) % world_size)  # here

    assert graph_of(receive, 3) == tuple(
        f"rank {rank} -> rank {peer}: recv #1 at {here(receive)}"
        for rank, peer in ((0, 2), (1, 0), (2, 1))
    )


def test_a_mismatch_has_an_edge_from_each_rank_to_the_others():
    def differ(rank):
        if rank == 0:
            dist.broadcast(torch.ones(2), 0)
        else:
            dist.all_reduce(torch.ones(2))

    first, second = graph_of(differ, 2)

    assert first.startswith("rank 0 -> rank 1: broadcast #1 at ")
    assert second.startswith("rank 1 -> rank 0: all_reduce #1 at ")


def test_a_failure_without_a_deadlock_has_no_graph():
    def fail(rank):
        raise ValueError("no")

    assert graph_of(fail, 2) == ()
