"""Correct programs pass, however their ranks are delayed: no false deadlocks."""

import random
import signal
import subprocess
import threading
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from correct_programs import PROGRAMS, keeps_a_world_of_its_own, starts_over

from gradsync import run_ranks


@pytest.mark.filterwarnings("ignore::gradsync.RankWarning")
@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_correct_program_passes(program, world_size):
    run_ranks(program, world_size, timeout=20)


@pytest.mark.parametrize("program", [starts_over, keeps_a_world_of_its_own])
def test_a_program_may_restart_groups(program):
    run_ranks(program, 2, timeout=20)


def test_thousands_of_handles_may_be_open():
    def pile_up():
        handles = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(5000)]
        for handle in handles:
            handle.wait()

    run_ranks(pile_up, 1, timeout=20)


def test_one_collective_may_have_thousands_of_tensors():
    def coalesce():
        dist.all_gather([torch.ones(1)], torch.ones(1))
        dist.reduce_scatter(torch.ones((1,) * 70), [torch.ones((1,) * 70)])
        dist.all_reduce_coalesced([torch.ones(1) for _ in range(5000)])

    run_ranks(coalesce, 1, timeout=20)


def test_many_small_collectives_with_random_pauses_pass():
    def stumble(rank):
        pause = random.Random(rank)
        for number in range(150):
            tensor = torch.ones(1)
            if pause.random() < 0.1:
                time.sleep(pause.random() * 0.02)
            if number % 3 == 0:
                dist.broadcast(tensor, number % 4)
            elif number % 3 == 1:
                dist.all_reduce(tensor)
            else:
                dist.reduce(tensor, number % 4)

    run_ranks(stumble, 4, timeout=30)


@pytest.mark.parametrize("collective", [dist.broadcast, dist.reduce])
def test_late_ranks_are_waited_for(collective):
    def lag(rank):
        time.sleep(1.2 * (rank % 2))
        collective(torch.ones(2), 0)

    run_ranks(lag, 4, timeout=20)


def test_a_rank_that_computes_for_long_is_waited_for():
    def compute(rank):
        until = time.monotonic() + 1.5 * (rank == 0)
        while time.monotonic() < until:
            sum(range(1000))
        dist.barrier()

    run_ranks(compute, 3, timeout=20)


def test_a_child_that_ends_may_wake_the_main_thread():
    def meet_twice(rank):
        groups = [dist.new_group([0, 1]) for _ in range(2)]
        if rank == 0:
            for group in reversed(groups):
                dist.barrier(group=group)
            return
        ended = threading.Event()
        signal.signal(signal.SIGCHLD, lambda *_: ended.set())
        thread = threading.Thread(target=dist.barrier, args=[groups[0]])
        thread.start()
        with subprocess.Popen(["sleep", "0.5"]):
            ended.wait()
            dist.barrier(group=groups[1])
        thread.join()

    run_ranks(meet_twice, 2, timeout=20)


def test_two_ranks_may_wait_for_a_third_in_different_ways():
    def lean_on_rank_2(rank):
        if rank == 2:
            time.sleep(1.2)
            dist.send(torch.ones(1), 0)
            dist.recv(torch.ones(1), 1)
        elif rank == 0:
            dist.recv(torch.ones(1), 2)
        else:
            dist.send(torch.ones(1), 2)
        dist.barrier()

    run_ranks(lean_on_rank_2, 3, timeout=20)


def test_parts_of_different_sizes_are_exchanged():
    def swap(rank):
        sent, received = [rank + 1] * 3, [1, 2, 3]
        parts = torch.empty(6, 2)
        for _ in range(2):
            whole = torch.full((sum(sent), 2), float(rank))
            dist.all_to_all_single(parts, whole, received, sent)
        columns = torch.empty(3)
        dist.all_to_all_single(columns, torch.ones(3))
        dist.all_to_all([torch.empty(1)] * 3, [torch.ones(1)] * 3)
        return parts[:, 0].tolist()

    assert list(run_ranks(swap, 3)) == [[0, 1, 1, 2, 2, 2]] * 3


def test_functional_collectives_give_the_results_of_plain_ones():
    def use_all(rank):
        world, own = dist.group.WORLD, torch.arange(4.0).reshape(2, 2) + 10 * rank
        made = [
            functional.all_reduce(own.t(), "sum", world),
            functional.broadcast(own, 1, world),
            functional.all_gather_tensor(own, 0, world),
            functional.reduce_scatter_tensor(own, "sum", 0, world),
            functional.all_to_all_single(own, [1, 1], [1, 1], world),
        ]
        functional.all_reduce(own, "sum", world)  # and no rank waits
        assert own.sum() == 6 + 40 * rank  # the input is not changed
        return [functional.wait_tensor(one).tolist() for one in made]

    for rank, (summed, reported, gathered, share, swapped) in enumerate(run_ranks(use_all, 2)):
        assert summed == [[10, 14], [12, 16]]
        assert reported == [[10, 11], [12, 13]]
        assert gathered == [[0, 1], [2, 3], [10, 11], [12, 13]]
        assert share == [[10 + 4 * rank, 12 + 4 * rank]]
        assert swapped == [[2.0 * rank, 2 * rank + 1], [2 * rank + 10, 2 * rank + 11]]
