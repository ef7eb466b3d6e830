"""Ranks that wait for each other in vain: proved from what they enter, not waited for."""

import re
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradsync import RankFailure, run_ranks


def gradients():
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    model(torch.ones(1, 2)).sum().backward()
    return model


@pytest.mark.parametrize("launcher", ["fork", "spawn"])
def test_a_rank_that_skips_an_all_reduce_is_named(failure_of, here, launcher):
    def skip(rank):
        model = gradients()
        for name, parameter in model.named_parameters():
            if rank != 1 or name != "1.bias":
                dist.all_reduce(parameter.grad)  # here

    failure = failure_of(skip, 3 if launcher == "fork" else 2, launcher=launcher)

    assert (failure.status, failure.diagnosis.code) == ("deadlock", "deadlock-rank-missing")
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(skip)
    assert "rank 1 never entered all_reduce #4 (1.bias.grad, 1 float)" in str(failure)


def test_who_waits_is_told(failure_of):
    def skip(rank):
        if rank != 2:
            dist.barrier()

    failure = failure_of(skip, 4)

    assert failure.waiting == (0, 1, 3)
    assert re.search(
        r"rank 2 never entered barrier #1: it has already returned; "
        r"ranks 0, 1, 3 wait there since test_ranks_deadlocks.py:\d+$",
        failure.diagnosis.explanation,
    )


def test_other_collectives_at_the_same_point_are_told(failure_of, here):
    def disagree(rank):
        if rank == 1:
            dist.barrier()  # here
        dist.all_reduce(torch.ones(2))

    failure = failure_of(disagree, 4)

    assert failure.diagnosis.code == "deadlock-order-differs"
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(disagree)


def test_the_odd_one_out_is_named_whoever_comes_first(failure_of):
    def disagree(rank):
        time.sleep(0.1 * (3 - rank))
        if rank == 2:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(2))

    failure = failure_of(disagree, 4)

    assert failure.diagnosis.ranks == (2,)


def test_parameters_in_another_order_are_told_as_that(failure_of):
    def reverse(rank):
        model = gradients()
        for parameter in list(model.parameters())[:: -1 if rank == 1 else 1]:
            dist.all_reduce(parameter.grad)

    failure = failure_of(reverse, 3)

    assert failure.diagnosis.code == "deadlock-order-differs"


@pytest.mark.parametrize(
    ("collective", "code"),
    [
        (lambda rank: dist.all_reduce(torch.ones(2 + rank)), "shape-mismatch"),
        (lambda rank: dist.broadcast(torch.ones(2 + rank), 0), "shape-mismatch"),
        (
            lambda rank: dist.all_reduce(torch.ones(2, dtype=[torch.int64, torch.float32][rank])),
            "shape-mismatch",
        ),
        (
            lambda rank: dist.all_reduce(
                torch.ones(2), [dist.ReduceOp.SUM, dist.ReduceOp.MAX][rank]
            ),
            "shape-mismatch",
        ),
        (lambda rank: dist.broadcast(torch.ones(2), rank), "wrong-source"),
        (lambda rank: dist.reduce(torch.ones(2), rank), "wrong-source"),
    ],
    ids=["sizes", "broadcast sizes", "dtypes", "reductions", "sources", "targets"],
)
def test_arguments_that_do_not_fit_are_told(failure_of, collective, code):
    failure = failure_of(collective, 2)

    assert (failure.status, failure.diagnosis.code) == ("deadlock", code)


def test_both_shapes_are_shown(failure_of):
    failure = failure_of(lambda rank: dist.all_reduce(torch.ones(2, 2 + rank)), 2)

    assert "shape [2, 2]" in failure.diagnosis.explanation
    assert "shape [2, 3]" in failure.diagnosis.explanation


@pytest.mark.parametrize("absent", range(4))
@pytest.mark.parametrize(
    "collective",
    [
        lambda: dist.broadcast(torch.ones(2), 0),
        lambda: dist.reduce(torch.ones(2), 0),
        lambda: dist.all_gather([torch.ones(2)] * 4, torch.ones(2)),
        lambda: dist.all_gather_object([None] * 4, "x"),
        lambda: dist.broadcast_object_list(["x"], 0),
    ],
    ids=["broadcast", "reduce", "all_gather", "all_gather_object", "broadcast_object_list"],
)
def test_whoever_leaves_a_collective_out_is_named(failure_of, collective, absent):
    def skip(rank):
        if rank != absent:
            collective()
        dist.barrier()

    failure = failure_of(skip, 4)

    assert failure.diagnosis.code == "deadlock-order-differs"
    assert failure.diagnosis.ranks == (absent,)


def test_everyone_sending_first_is_told(failure_of, here):
    def ring(rank):
        dist.send(torch.ones(3), (rank + 1) % 3)  # here
        dist.recv(torch.ones(3), (rank - 1) % 3)

    failure = failure_of(ring, 3)

    assert failure.diagnosis.code == "deadlock-order-differs"
    assert failure.diagnosis.ranks == (0, 1, 2)
    assert failure.diagnosis.where == here(ring)
    assert "rank 2 waits in send #1 to rank 0 (3 floats)" in failure.diagnosis.explanation


def test_a_recv_that_nobody_sends_for_is_told(failure_of):
    def forget(rank):
        if rank == 1:
            dist.recv(torch.ones(3), 0)

    failure = failure_of(forget)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (0,)
    assert "rank 0 never sent what recv #1 from rank 0" in failure.diagnosis.explanation


def test_a_send_that_nobody_receives_is_told(failure_of):
    def forget(rank):
        if rank == 1:
            dist.send(torch.ones(3), 0)

    failure = failure_of(forget)

    assert failure.diagnosis.ranks == (0,)
    assert "rank 0 never received send #1 to rank 0" in failure.diagnosis.explanation


def test_a_recv_from_anyone_when_all_have_returned_is_told(failure_of):
    def forget(rank):
        if rank == 0:
            dist.recv(torch.ones(3))

    failure = failure_of(forget, 3)

    assert failure.diagnosis.ranks == (1, 2)


def test_another_tag_is_another_message(failure_of):
    def mistag(rank):
        if rank == 0:
            dist.send(torch.ones(3), 1, tag=1)
        else:
            dist.recv(torch.ones(3), 0, tag=2)

    failure = failure_of(mistag)

    assert failure.diagnosis.code == "deadlock-order-differs"


@pytest.mark.parametrize("first", [0, 1])
def test_a_message_too_long_for_its_receiver_is_told(failure_of, first):
    def overflow(rank):
        time.sleep(0.1 * (rank != first))
        if rank == 0:
            dist.send(torch.ones(4), 1)
        else:
            dist.recv(torch.ones(3), 0)

    failure = failure_of(overflow)

    assert failure.diagnosis.code == "shape-mismatch"
    assert failure.diagnosis.ranks == (0, 1)


def test_a_message_of_another_dtype_is_told(failure_of):
    def mistype(rank):
        if rank == 0:
            dist.send(torch.ones(3), 1)
        else:
            dist.recv(torch.ones(3, dtype=torch.float64), 0)

    failure = failure_of(mistype)

    assert failure.diagnosis.code == "shape-mismatch"


def test_a_handle_that_is_waited_for_in_vain_is_told(failure_of, here):
    def skip(rank):
        if rank == 0:
            handle = dist.all_reduce(torch.ones(2), async_op=True)  # here
            handle.wait()

    failure = failure_of(skip)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(skip)


@pytest.mark.parametrize(
    "wait",
    [lambda future: future.wait(), lambda future: future.then(lambda f: f.value()).wait()],
    ids=["future", "chained"],
)
def test_a_future_that_is_waited_for_in_vain_is_told(failure_of, wait):
    def skip(rank):
        if rank == 0:
            wait(dist.all_reduce(torch.ones(2), async_op=True).get_future())

    failure = failure_of(skip)

    assert failure.diagnosis.ranks == (1,)


def test_a_handle_waited_for_after_its_future_was_taken_is_told(failure_of):
    def skip(rank):
        if rank == 0:
            handle = dist.all_reduce(torch.ones(2), async_op=True)
            handle.get_future()
            handle.wait()

    failure = failure_of(skip)

    assert failure.diagnosis.ranks == (1,)


def test_an_isend_and_irecv_that_cross_wrongly_are_told(failure_of):
    def exchange(rank):
        other = 1 - rank
        handles = dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(2), other)])
        for handle in handles:
            handle.wait()
        dist.isend(torch.ones(2), other).wait()

    failure = failure_of(exchange)

    assert failure.diagnosis.code == "deadlock-order-differs"


def test_a_rank_that_skips_a_subgroups_collective_is_named(failure_of):
    def skip(rank):
        pair = dist.new_group([0, 2])
        if rank == 2:
            dist.all_reduce(torch.ones(2), group=pair)

    failure = failure_of(skip, 4)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (0,)


def test_a_group_that_one_rank_does_not_found_is_told(failure_of):
    def skip(rank):
        if rank != 1:
            dist.new_group([0, 2])

    failure = failure_of(skip, 3)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (1,)
    assert "new_group" in failure.diagnosis.explanation


def test_a_default_group_that_one_rank_never_starts_is_told(failure_of, here, tmp_path):
    def forget(rank, path):
        if rank != 1:
            dist.init_process_group(  # here
                "gloo", init_method=f"file://{path}", rank=rank, world_size=3
            )

    failure = failure_of(forget, 3, process_group=False, path=str(tmp_path / "store"))

    assert failure.diagnosis.code == "group-not-initialised"
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(forget)


def test_a_deadlock_inside_backward_hooks_is_told(failure_of):
    def hooked(rank):
        layer = nn.Linear(2, 1)
        layer.weight.register_hook(dist.all_reduce)
        if rank != 1:
            layer.bias.register_hook(dist.all_reduce)
        layer(torch.ones(1, 2)).sum().backward()

    failure = failure_of(hooked, 3)

    assert failure.status == "deadlock"
    assert failure.diagnosis.ranks == (1,)


def test_a_deadlock_in_a_helper_thread_that_the_main_thread_joins_is_told(failure_of):
    def skip(rank):
        if rank == 0:
            helper = threading.Thread(target=dist.all_reduce, args=[torch.ones(2)])
            helper.start()
            helper.join()

    failure = failure_of(skip)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (1,)


def test_a_deadlock_beside_an_idle_thread_is_told_when_the_time_is_up():
    def skip(rank):
        if rank == 0:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            dist.all_reduce(torch.ones(2))

    with pytest.raises(RankFailure) as caught:
        run_ranks(skip, 2, timeout=0.5)

    failure = caught.value.observation.failure
    assert (failure.status, failure.diagnosis.code) == ("deadlock", "deadlock-rank-missing")
    assert failure.diagnosis.ranks == (1,)
    assert "not done after 0.5 s" in failure.diagnosis.explanation


def test_polling_in_vain_is_told_when_the_time_is_up(here):
    def poll(rank):
        if rank == 0:
            handle = dist.all_reduce(torch.ones(2), async_op=True)  # here
            while not handle.is_completed():
                time.sleep(0.01)

    with pytest.raises(RankFailure) as caught:
        run_ranks(poll, 2, timeout=0.5)

    failure = caught.value.observation.failure
    assert (failure.status, failure.diagnosis.code) == ("deadlock", "deadlock-rank-missing")
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(poll)


def test_the_ranks_that_failed_only_because_another_did_are_not_blamed(failure_of):
    def fail(rank):
        dist.all_reduce(torch.ones(2))
        if rank == 1:
            dist.destroy_process_group()
            raise ValueError("the root of it")
        dist.all_reduce(torch.ones(2))

    failure = failure_of(fail, 3)

    assert failure.diagnosis.ranks == (1,)
    assert failure.detail == "the root of it"
