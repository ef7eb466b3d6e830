"""Deadlocks of sends and receives."""

import time

import pytest
import torch
import torch.distributed as dist


def test_a_circle_of_sends_is_reported(failure_of, here):
    def ring(rank):
        dist.send(torch.ones(3), (rank + 1) % 3)  # here
        dist.recv(torch.ones(3), (rank - 1) % 3)

    failure = failure_of(ring, 3)

    assert failure.diagnosis.code == "deadlock-order-differs"
    assert failure.diagnosis.ranks == (0, 1, 2)
    assert failure.diagnosis.where == here(ring)
    assert "Rank 2 is waiting in send #1 to rank 0 (3 x float32)" in failure.diagnosis.explanation


def test_a_recv_without_a_send_is_reported(failure_of):
    def forget(rank):
        if rank == 1:
            dist.recv(torch.ones(3), 0)

    failure = failure_of(forget)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (0,)
    assert (
        "Rank 0 returned without sending the message that rank 1 is waiting for."
        in failure.diagnosis.explanation
    )


def test_a_send_without_a_recv_is_reported(failure_of):
    def forget(rank):
        if rank == 1:
            dist.send(torch.ones(3), 0)

    failure = failure_of(forget)

    assert failure.diagnosis.ranks == (0,)
    assert (
        "Rank 0 returned without receiving the message that rank 1 is sending."
        in failure.diagnosis.explanation
    )


def test_a_recv_from_any_rank_after_all_have_returned_is_reported(failure_of):
    def forget(rank):
        if rank == 0:
            dist.recv(torch.ones(3))

    failure = failure_of(forget, 3)

    assert failure.diagnosis.ranks == (1, 2)


def test_messages_with_different_tags_do_not_match(failure_of):
    def mistag(rank):
        if rank == 0:
            dist.send(torch.ones(3), 1, tag=1)
        else:
            dist.recv(torch.ones(3), 0, tag=2)

    failure = failure_of(mistag)

    assert failure.diagnosis.code == "deadlock-order-differs"


@pytest.mark.parametrize("first", [0, 1])
def test_a_message_too_large_for_its_receiver_is_reported(failure_of, first):
    def overflow(rank):
        time.sleep(0.1 * (rank != first))
        if rank == 0:
            dist.send(torch.ones(4), 1)
        else:
            dist.recv(torch.ones(3), 0)

    failure = failure_of(overflow)

    assert failure.diagnosis.code == "shape-mismatch"
    assert failure.diagnosis.ranks == (0, 1)


def test_isends_after_irecvs_on_both_ranks_are_reported(failure_of):
    def exchange(rank):
        other = 1 - rank
        handles = dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(2), other)])
        for handle in handles:
            handle.wait()
        dist.isend(torch.ones(2), other).wait()

    failure = failure_of(exchange)

    assert failure.diagnosis.code == "deadlock-order-differs"
