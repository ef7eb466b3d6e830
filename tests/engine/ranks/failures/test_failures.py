"""A rank that raises, exits, dies or never ends is reported at once."""

import os
import re
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks
from gradsync.ranks.failures import endings, exceptions

both_launchers = pytest.mark.parametrize("launcher", ["fork", "spawn"])


@both_launchers
def test_an_exception_is_reported_with_its_line_while_others_wait(failure_of, here, launcher):
    def fail(rank):
        if rank == 1:
            raise ValueError("no such thing")  # here
        dist.barrier()

    failure = failure_of(fail, 3 if launcher == "fork" else 2, launcher=launcher)

    assert (failure.status, failure.diagnosis.code) == ("error", "exception")
    assert (failure.exception, failure.detail) == ("ValueError", "no such thing")
    assert failure.diagnosis.ranks == (1,)
    assert failure.diagnosis.where == here(fail)


def test_an_exception_on_all_ranks_names_all(failure_of):
    def fail():
        return {}["missing"]

    failure = failure_of(fail, 3)

    assert failure.diagnosis.ranks == (0, 1, 2)


def test_an_exception_is_reported_while_another_rank_computes(failure_of):
    def fail(rank):
        if rank == 1:
            raise ValueError
        time.sleep(30)

    failure = failure_of(fail)

    assert failure.diagnosis.ranks == (1,)


def test_ranks_that_raise_later_are_named_too(failure_of):
    def fail(rank):
        time.sleep(0.3 * rank)
        raise ValueError

    failure = failure_of(fail, 3)

    assert failure.diagnosis.ranks == (0, 1, 2)


def test_a_traceback_has_only_the_users_lines(failure_of):
    def inner(tensor):
        return tensor.view(7)

    def fail():
        return inner(torch.ones(3))

    failure = failure_of(fail, 1)

    assert re.findall(r" in (\w+)", failure.traceback) == ["fail", "inner"]


def test_a_function_called_wrapper_is_not_taken_for_ours(failure_of):
    def wrapper(rank):
        if rank == 0:
            raise ValueError("my own")
        dist.barrier()

    failure = failure_of(wrapper)

    assert failure.detail == "my own"


def test_an_exception_with_a_broken_str_is_reported(failure_of):
    class OddError(Exception):
        def __str__(self):
            raise RuntimeError

    def fail():
        raise OddError

    failure = failure_of(fail, 1)

    assert failure.exception == "OddError"


def test_an_exception_with_megabytes_of_text_is_reported(failure_of):
    def fail():
        raise ValueError("x" * 40_000_000)

    failure = failure_of(fail, 1)

    assert failure.exception == "ValueError"


@pytest.mark.parametrize("code", [0, 3, "bye"])
def test_sys_exit_is_a_crash_whatever_the_code(failure_of, code):
    def leave(rank):
        if rank == 1:
            sys.exit(code)
        dist.barrier()

    failure = failure_of(leave)

    assert (failure.status, failure.diagnosis.code) == ("crashed", "rank-crashed")
    assert (
        f"Rank 1 exited with SystemExit({code}) at test_failures.py:"
        in failure.diagnosis.explanation
    )


def test_sys_exit_on_import_is_reported_for_the_whole_file():
    frames = [["template_trainer.py:7", "<module>", "sys.exit(0)"]]
    error = exceptions.Raised.read({"type": "SystemExit", "code": 0, "frames": frames})

    diagnosis = exceptions.raised(error, (0, 1)).diagnosis

    assert diagnosis.whole_file
    assert "line 7 ends the process with SystemExit(0)" in diagnosis.explanation


def test_sys_exit_with_an_object_is_a_crash(failure_of):
    failure = failure_of(lambda: sys.exit(object()), 1)

    assert failure.diagnosis.code == "rank-crashed"


def test_a_silent_exit_is_a_crash(failure_of):
    def leave(rank):
        if rank == 1:
            os._exit(0)
        dist.barrier()

    failure = failure_of(leave)

    assert (failure.status, failure.diagnosis.code) == ("crashed", "rank-crashed")
    assert failure.diagnosis.ranks == (1,)
    assert (
        "Rank 1 exited with status 0 before its function returned" in failure.diagnosis.explanation
    )


@both_launchers
def test_a_killed_rank_is_reported_with_the_signal(failure_of, launcher):
    def die(rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    failure = failure_of(die, launcher=launcher)

    assert (failure.status, failure.diagnosis.code) == ("crashed", "rank-crashed")
    assert failure.diagnosis.ranks == (1,)
    assert "killed by SIGKILL" in failure.diagnosis.explanation


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE])
def test_a_crash_is_reported_with_its_line(failure_of, here, number):
    def die(rank):
        if rank == 1:
            os.kill(os.getpid(), number)  # here
        dist.barrier()

    failure = failure_of(die)

    assert number.name in failure.diagnosis.explanation
    assert failure.diagnosis.where == here(die)


def test_a_death_is_noticed_even_if_a_child_keeps_the_ranks_files_open(failure_of):
    def leave_a_child(rank):
        if rank == 1:
            if os.fork() == 0:
                time.sleep(60)
            os._exit(3)
        dist.barrier()

    failure = failure_of(leave_a_child)

    assert "Rank 1 exited with status 3" in failure.diagnosis.explanation


@pytest.mark.parametrize(
    "allocate",
    [lambda: bytearray(2**60), lambda: torch.empty(2**50)],
    ids=["python", "torch"],
)
def test_running_out_of_memory_is_reported_as_such(failure_of, allocate):
    failure = failure_of(allocate, 1)

    assert (failure.status, failure.diagnosis.code) == ("crashed", "out-of-memory")


@both_launchers
def test_an_endless_loop_is_reported_with_its_line(here, launcher):
    def loop(rank):
        while rank == 1:
            sum(range(100))  # here
        dist.barrier()

    with pytest.raises(RankFailure) as caught:
        run_ranks(loop, 2, timeout=0.7, launcher=launcher)

    failure = caught.value.observation.failure
    assert (failure.status, failure.diagnosis.code) == ("timeout", "too-slow")
    assert failure.diagnosis.ranks == (1,)
    assert abs(int(failure.diagnosis.where.split(":")[1]) - int(here(loop).split(":")[1])) <= 1
    assert re.search(r"Rank 0 is waiting in barrier #1, at \S+:\d+", failure.diagnosis.explanation)


def test_a_rank_that_hangs_in_a_library_is_reported_with_the_users_line(here):
    def hang():
        time.sleep(60)  # here

    with pytest.raises(RankFailure) as caught:
        run_ranks(hang, 2, timeout=0.3)

    assert caught.value.observation.failure.diagnosis.where == here(hang)


def test_a_rank_that_prints_endlessly_is_stopped():
    def babble():
        while True:
            print("and another thing")

    with pytest.raises(RankFailure) as caught:
        run_ranks(babble, 2, timeout=0.5)

    assert caught.value.observation.failure.diagnosis.code == "too-slow"


def test_a_collective_without_a_group_is_reported(failure_of, here):
    def forget():
        dist.all_reduce(torch.ones(2))  # here

    failure = failure_of(forget, 2, process_group=False)

    assert failure.diagnosis.code == "group-not-initialised"
    assert failure.diagnosis.ranks == (0, 1)
    assert failure.diagnosis.where == here(forget)


@pytest.mark.parametrize(
    ("message", "hint"),
    [("'NoneType' object", "every path"), ("non-iterator", "`__iter__`"), ("index 5", "")],
)
def test_an_unusable_return_value_gets_a_hint_only_if_known(message, hint):
    error = exceptions.Raised.read({"type": "TypeError", "message": message})

    text = exceptions.raised(error, (0,)).diagnosis.explanation

    assert hint in text if hint else text.endswith(f"can't be used (TypeError: {message}).")


def test_a_stub_is_reported_as_unfinished(failure_of):
    def stub():
        raise NotImplementedError("phase1/train_step")

    failure = failure_of(stub, 2)

    assert (failure.status, failure.diagnosis.code) == ("unfinished", "unfinished")


def test_a_failure_has_a_readable_text():
    def fail(rank):
        raise ValueError(f"rank {rank} is unwell")

    with pytest.raises(RankFailure) as caught:
        run_ranks(fail, 1)

    assert re.fullmatch(
        r"Rank 0 raised ValueError at test_failures.py:\d+: rank 0 is unwell\.\n\n"
        r'  test_failures.py:\d+ in fail: raise ValueError\(f"rank \{rank\} is unwell"\)',
        str(caught.value),
    )


def test_the_observation_until_the_failure_is_kept():
    def fail(rank):
        dist.all_reduce(torch.ones(2))
        print("so far, so good")
        if rank == 1:
            raise ValueError
        return rank

    with pytest.raises(RankFailure) as caught:
        run_ranks(fail, 2)

    seen = caught.value.observation
    assert (seen.answered, list(seen)) == ((0,), [0, None])
    assert seen.output == ("so far, so good\n",) * 2
    assert [c.op for c in seen.collectives(1)] == ["all_reduce"]


def test_a_loop_that_starts_collectives_endlessly_is_reported_with_its_line(
    failure_of, here, monkeypatch
):
    monkeypatch.setattr(endings, "MAX_OPEN", 100)

    def loop():
        started = []
        while True:
            started.append(dist.all_reduce(torch.ones(1), async_op=True))  # here

    failure = failure_of(loop)

    assert (failure.status, failure.diagnosis.code) == ("timeout", "too-slow")
    assert failure.diagnosis.where == here(loop)
    assert "has started 101 collectives, and none of them is complete" in (
        failure.diagnosis.explanation
    )
