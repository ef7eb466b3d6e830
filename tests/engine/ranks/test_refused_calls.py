"""Functions, inputs and values that can't be used on ranks are refused with a reason."""

import multiprocessing
import queue
import re
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks


@pytest.mark.parametrize("world_size", [0, -1, 257, 1.5, True, "2"])
def test_an_unusable_world_size_is_refused(world_size):
    with pytest.raises(ValueError, match="world_size must be from 1 to 256"):
        run_ranks(lambda: None, world_size)


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_an_unusable_timeout_is_refused(timeout):
    with pytest.raises(ValueError, match="timeout must be above 0"):
        run_ranks(lambda: None, 1, timeout=timeout)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_to_debug_must_be_one_of_the_run(rank, monkeypatch):
    monkeypatch.setattr("gradsync.ranks.run._terminal", lambda: "/dev/tty")

    with pytest.raises(ValueError, match=f"debug must be one of the 2 ranks, .* got {rank}"):
        run_ranks(lambda: None, 2, debug=rank)


def test_an_object_that_is_not_callable_is_refused():
    with pytest.raises(TypeError, match="function must be callable, got 3"):
        run_ranks(3, 1)


def test_a_message_to_a_rank_that_does_not_exist_is_refused():
    def send_before_the_first(rank):
        if rank == 0:
            dist.send(torch.ones(1), rank - 1)

    with pytest.raises(RankFailure, match="send: there is no rank -1 in a group of 2"):
        run_ranks(send_before_the_first, 2)


def test_an_input_may_not_be_called_rank():
    with pytest.raises(ValueError, match="rank can't be an input"):
        run_ranks(lambda rank: rank, 1, rank=3)


def test_an_unknown_launcher_is_refused():
    with pytest.raises(ValueError, match="'spawn' or 'sandbox', got 'threads'"):
        run_ranks(lambda: None, 1, launcher="threads")


def test_an_input_that_the_function_does_not_take_is_refused():
    def take(rank, scale):
        return rank * scale

    with pytest.raises(TypeError, match=r"take\(rank, scale\) can't be called .* 'size'"):
        run_ranks(take, 1, scale=1, size=2)


def test_a_parameter_without_an_input_is_refused():
    with pytest.raises(TypeError, match="missing a required argument: 'scale'"):
        run_ranks(lambda rank, scale: rank * scale, 1)


@pytest.mark.parametrize("make", [threading.Lock, queue.Queue, multiprocessing.Queue])
def test_an_input_that_can_not_be_pickled_is_refused(make):
    with pytest.raises(TypeError, match=r"the input 'given' can't be sent .*run_ranks returns"):
        run_ranks(lambda size, given: [size, given], 1, size=1, given=make())


def test_inputs_beyond_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr("gradsync.ranks.task.MAX_TASK", 1000)

    with pytest.raises(ValueError, match=r"the inputs have \d,\d+ bytes"):
        run_ranks(lambda data: data[:1], 1, data=bytes(2000))


def test_an_answer_beyond_the_limit_is_reported(failure_of):
    failure = failure_of(lambda: bytes(2**28 + 1), 1, process_group=False)

    assert "is over the limit of 268,435,456 bytes" in failure.diagnosis.explanation


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (object, "the returned value is of type object"),
        (lambda: {"loss": [1, object()]}, r"the returned value\['loss'\]\[1\] is of type object"),
        (lambda: {object(): 1}, "a key of the returned value is of type object"),
        (lambda: [np.array(["a"])], r"the returned value\[0\] is an array of <U1"),
        (lambda: torch.ones(2, 2).to_sparse(), "the returned value is a torch.sparse_coo tensor"),
    ],
    ids=["itself", "nested", "key", "array", "sparse"],
)
def test_a_value_that_is_not_plain_data_is_named(failure_of, value, where):
    failure = failure_of(value, 1, process_group=False)

    assert re.search(where, failure.diagnosis.explanation)
