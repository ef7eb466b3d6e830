"""Warnings of a successful run: calls whose outcome is uncertain or wrong."""

import warnings

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, RankWarning, run_ranks
from gradsync.ranks.deadlocks.doubts import doubts
from gradsync.records import Collective, Event


def never_waits(rank):
    dist.all_reduce(torch.ones(4), async_op=True)


def changes_it_in_flight(rank):
    total = torch.ones(4)
    work = dist.all_reduce(total, async_op=True)
    total += 1
    work.wait()


def passes_other_shapes(rank):
    dist.all_reduce(torch.ones(2, 3) if rank else torch.ones(3, 2))


def passes_a_column(rank):
    dist.all_reduce(torch.ones(3, 2)[:, 0])


def passes_a_transposed_matrix_on_one_rank(rank):
    dist.broadcast(torch.ones(2, 3).t() if rank else torch.ones(3, 2), 0)


MISTAKES = {
    never_waits: ("never-awaited", "is never waited for"),
    changes_it_in_flight: ("changed-in-flight", "before you change the tensor"),
    passes_other_shapes: ("shape-mismatch", "tensors of different shapes"),
    passes_a_column: ("not-contiguous", "not contiguous"),
    passes_a_transposed_matrix_on_one_rank: ("not-contiguous", "not in the same layout"),
}


@pytest.mark.parametrize("function", MISTAKES, ids=lambda function: function.__name__)
def test_an_uncertain_outcome_gives_a_warning_with_its_line(function, here):
    code, text = MISTAKES[function]

    with pytest.warns(RankWarning, match=text):
        seen = run_ranks(function, 2)

    (diagnosis,) = seen.warnings
    assert (diagnosis.code, diagnosis.ranks) == (code, (0, 1))
    assert diagnosis.where.startswith("test_doubts.py:")


def test_strict_turns_the_warning_into_a_failure():
    with pytest.raises(RankFailure, match=r"On ranks 0 and 1, the all_reduce at test_doubts\.py:"):
        run_ranks(never_waits, 2, strict=True)


def correct(rank):
    """Calls that look similar to the mistakes, but are right."""
    dist.send(torch.ones(3), 1) if rank == 0 else dist.recv(torch.ones(3), 0)
    works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(2)]
    works[1].get_future().wait()
    while not works[0].is_completed():
        pass
    dist.all_reduce(torch.ones(1) if rank else torch.tensor(1.0))
    dist.all_reduce(torch.ones(2, 3).t())  # the same layout on all ranks
    dist.all_gather([torch.ones(3)] * 2, torch.ones(3, 2)[:, 0])  # gloo copies it
    return True


def test_similar_calls_that_are_right_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        assert all(run_ranks(correct, 2))


def test_calls_that_torch_makes_itself_give_no_warning():
    call = Collective("all_reduce", "0", (0,), via="DistributedDataParallel", where="train.py:3")
    enter = Event(0, "enter", 0, 0.0, 1, collective=call)

    assert doubts([enter]) == ()
