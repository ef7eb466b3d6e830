"""Ranks that may be lost: the others continue, and notice it only through gloo."""

import os
import signal
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks

both_launchers = pytest.mark.parametrize("launcher", ["fork", "spawn"])


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def sum_up():
    """Call a collective; return its result or its error."""
    try:
        dist.all_reduce(torch.ones(3))
    except RuntimeError as error:
        return str(error)
    return "done"


@both_launchers
def test_the_others_continue_when_a_rank_is_killed(launcher):
    def function(rank):
        first = sum_up()
        if rank == 1:
            die()
        return [first, sum_up()]

    seen = run_ranks(function, 3, may_fail=[1], launcher=launcher)

    assert seen.answered == (0, 2)
    assert seen[1] is None
    assert [seen[rank][0] for rank in (0, 2)] == ["done", "done"]
    assert all("peer" in seen[rank][1] for rank in (0, 2))


def test_a_rank_without_a_connection_to_the_lost_one_notices_the_loss():
    def function(rank):
        if rank == 1:
            die()
        return sum_up()

    seen = run_ranks(function, 4, may_fail=[1])

    assert all("peer" in seen[rank] for rank in (0, 2, 3))


def test_a_rank_that_may_fail_may_also_succeed():
    seen = run_ranks(sum_up, 3, may_fail=[0, 2])

    assert seen.answered == (0, 1, 2)
    assert list(seen) == ["done"] * 3


def test_a_late_rank_finds_that_the_others_have_ended(tmp_path):
    def function(rank):
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))
        while rank == 1 and len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        received = sum_up()
        (tmp_path / str(rank)).touch()
        return received

    seen = run_ranks(function, 3, may_fail=[1])

    assert seen.answered == (0, 1, 2)
    assert "done" not in seen
    assert any("Timed out" in seen[rank] for rank in (0, 2))


def test_mismatched_collectives_are_not_blocked():
    def function(rank):
        if rank == 1:
            die()
        received = sum_up()
        try:
            dist.barrier() if rank == 0 else dist.broadcast(torch.ones(2), src=2)
        except RuntimeError:
            received += "; failed again"
        return received

    seen = run_ranks(function, 3, may_fail=[1])

    assert seen[0].endswith("failed again")
    assert seen.answered == (0, 2)


def test_an_exception_of_a_survivor_is_reported(failure_of):
    def function(rank):
        if rank == 1:
            die()
        dist.barrier()

    failure = failure_of(function, 3, may_fail=[1])

    assert (failure.status, failure.exception) == ("error", "RuntimeError")
    assert failure.diagnosis.ranks == (0, 2)


def test_an_exception_of_a_rank_that_may_be_lost_is_reported(failure_of):
    def function(rank):
        if rank == 1:
            raise ValueError("its own")
        sum_up()

    failure = failure_of(function, 3, may_fail=[1])

    assert (failure.detail, failure.diagnosis.ranks) == ("its own", (1,))


def test_the_death_of_another_rank_is_a_failure(failure_of):
    def function(rank):
        if rank == 2:
            die()
        sum_up()

    failure = failure_of(function, 3, may_fail=[1])

    assert (failure.diagnosis.code, failure.diagnosis.ranks) == ("rank-crashed", (2,))


def test_a_hanging_survivor_is_reported_with_its_line_and_the_dead_rank(failure_of, here):
    def function(rank):
        if rank == 1:
            die()
        while rank == 0:
            time.sleep(0.1)
        dist.recv(torch.ones(3), 0)  # here

    failure = failure_of(function, 3, may_fail=[1], timeout=2.0)

    text = failure.diagnosis.explanation
    assert (failure.status, failure.diagnosis.code) == ("timeout", "too-slow")
    assert "Rank 1 died." in text
    assert f"Rank 2 is waiting in recv #1 from rank 0 (3 x float32), at {here(function)}." in text


@pytest.mark.parametrize("may_fail", [[2], [0, 1], [-1], ["0"]])
def test_casualties_must_be_some_of_the_ranks(may_fail):
    with pytest.raises(ValueError, match="may_fail"):
        run_ranks(sum_up, 2, may_fail=may_fail)


def test_a_death_fails_the_run_unless_it_is_allowed():
    with pytest.raises(RankFailure, match="Rank 1 was killed by SIGKILL"):
        run_ranks(lambda rank: die() if rank == 1 else sum_up(), 2)
