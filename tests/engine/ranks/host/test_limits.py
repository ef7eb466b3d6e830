"""Time limits that do not count time in which other programs use the cores."""

import os
import time

import pytest

from gradsync import run_ranks
from gradsync.ranks.host.limits import MOST, Deadline


class RankProcesses:
    waited = 0.0

    def starved(self):
        return self.waited


def test_on_an_idle_machine_the_limit_is_not_extended():
    deadline = Deadline(RankProcesses(), now=100.0)

    assert [deadline.over(20.0, now) for now in (100.0, 119.9, 120.1)] == [False, False, True]


def test_time_in_which_ranks_could_not_run_does_not_count():
    processes = RankProcesses()
    processes.waited = 7.0  # before
    deadline = Deadline(processes, now=0.0)
    processes.waited = 22.0

    assert [deadline.over(20.0, now) for now in (21.0, 34.9)] == [False, False]
    assert deadline.over(20.0, 35.1)


def test_a_limit_is_not_shortened_when_the_thread_that_waited_most_ends():
    processes = RankProcesses()
    processes.waited = 7.0
    deadline = Deadline(processes, now=0.0)
    processes.waited = 0.0

    assert deadline.over(0.4, 0.5)
    assert [deadline.over(1.0, now) for now in (0.6, 1.1)] == [False, True]


def test_a_limit_is_not_extended_endlessly():
    processes = RankProcesses()
    deadline = Deadline(processes, now=0.0)
    processes.waited = 1e6

    assert not deadline.over(20.0, MOST * 20.0 - 1)
    assert deadline.over(20.0, MOST * 20.0 + 1)


def test_one_wait_can_have_a_short_and_a_long_limit():
    processes = RankProcesses()
    deadline = Deadline(processes, now=0.0)
    processes.waited = 15.0

    assert [deadline.over(20.0, now) for now in (34.9, 35.1)] == [False, True]
    assert [deadline.over(50.0, now) for now in (35.1, 64.9, 65.1)] == [False, False, True]


@pytest.mark.parametrize("launcher", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_starved_rank_gets_its_full_time(launcher):
    def compute(rank):
        os.sched_setaffinity(0, {0})  # all on one core
        until = time.process_time() + 0.8
        while time.process_time() < until:
            pass
        return rank

    assert list(run_ranks(compute, 3, launcher=launcher, timeout=1.2)) == [0, 1, 2]
