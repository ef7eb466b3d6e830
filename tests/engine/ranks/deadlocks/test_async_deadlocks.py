"""Deadlocks of asynchronous work: handles, futures, hooks and helper threads."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

from gradsync import RankFailure, run_ranks

WAITS = {
    "handle": lambda work: work.wait(),
    "future": lambda work: work.get_future().wait(),
    "chained future": lambda work: work.get_future().then(lambda done: done.value()).wait(),
    "handle whose future was taken": lambda work: (work.get_future(), work.wait()),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_waiting_for_work_that_never_completes_is_reported(failure_of, here, wait):
    def skip(rank):
        if rank == 0:
            wait(dist.all_reduce(torch.ones(2), async_op=True))  # here

    failure = failure_of(skip)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(skip)


@pytest.mark.parametrize(
    "use", [functional.wait_tensor, lambda tensor: tensor + 1], ids=["wait", "use"]
)
def test_waiting_for_a_functional_collective_that_never_completes_is_reported(
    failure_of, here, use
):
    def skip(rank):
        if rank == 0:
            made = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)  # here
            use(made)

    failure = failure_of(skip)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(skip)


def test_a_deadlock_inside_backward_hooks_is_reported(failure_of):
    def hooked(rank):
        layer = nn.Linear(2, 1)
        layer.weight.register_hook(dist.all_reduce)
        if rank != 1:
            layer.bias.register_hook(dist.all_reduce)
        layer(torch.ones(1, 2)).sum().backward()

    failure = failure_of(hooked, 3)

    assert failure.status == "deadlock"
    assert failure.diagnosis.ranks == (1,)


def test_a_deadlock_in_a_joined_helper_thread_is_reported(failure_of):
    def skip(rank):
        if rank == 0:
            helper = threading.Thread(target=dist.all_reduce, args=[torch.ones(2)])
            helper.start()
            helper.join()

    failure = failure_of(skip)

    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (1,)


def test_a_deadlock_beside_a_thread_that_could_call_is_reported_at_the_time_limit():
    def call_late():
        time.sleep(60)
        dist.barrier()

    def skip(rank):
        if rank == 0:
            threading.Thread(target=call_late, daemon=True).start()
            dist.all_reduce(torch.ones(2))

    with pytest.raises(RankFailure) as caught:
        run_ranks(skip, 2, timeout=0.5)

    failure = caught.value.observation.failure
    assert (failure.status, failure.diagnosis.code) == ("deadlock", "deadlock-rank-missing")
    assert failure.diagnosis.ranks == (1,)
    assert "did not finish within 0.5 s" in failure.diagnosis.explanation


def test_endless_polling_is_reported_at_the_time_limit(here):
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


def test_a_program_that_catches_errors_does_not_hide_that_a_rank_ended_its_groups():
    def session(rank):
        dist.barrier()
        try:
            if rank == 0:
                dist.all_reduce(torch.ones(2))
        except RuntimeError:
            raise SystemExit(1) from None
        dist.destroy_process_group()
        time.sleep(1)

    with pytest.raises(RankFailure, match=r"Rank 1 called destroy_process_group.* all_reduce #2"):
        run_ranks(session, 2, timeout=20)
