"""Tensors that a rank changes while a collective is in progress, or before or after it."""

import time

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from gradsync import run_ranks


def divide_then_wait():
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, async_op=True)
    tensor /= 2
    work.wait()


def divide_then_poll():
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, async_op=True)
    tensor.mul_(0.5)
    while not work.is_completed():
        pass


def wait_then_divide():
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    tensor /= 2
    work.wait()


def divide_without_async():
    tensor = torch.ones(8)
    dist.all_reduce(tensor)
    tensor /= 2


def divide_in_a_callback():
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, async_op=True)
    chained = work.get_future().then(lambda _: tensor.div_(2))
    work.wait()
    chained.wait()


def change_another_part():
    flat = torch.ones(8)
    work = dist.all_reduce(flat[:4], async_op=True)
    flat[4:] = 2
    work.wait()


def change_what_is_gathered():
    tensor = torch.ones(8)
    work = dist.all_gather([torch.empty(8) for _ in range(2)], tensor, async_op=True)
    tensor /= 2
    work.wait()


# A thread of gloo copies the result into the tensor, long before the rank waits for it. The copy
# raises the tensor's version, just as a change by the rank does.


def wait_late_for_several_at_once():
    work = dist.all_reduce_coalesced([torch.ones(8), torch.ones(3)], async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_a_part_of_the_sum():
    work = dist.reduce_scatter_tensor(torch.empty(4), torch.ones(8), async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_a_gather_in_place():
    parts = [torch.ones(8) for _ in range(2)]
    work = dist.all_gather(parts, parts[dist.get_rank()], async_op=True)
    time.sleep(0.1)
    work.wait()


# gloo divides a sum to get the mean, in place and on its own thread.


def wait_late_for_a_mean():
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_a_mean_of_complex_numbers():
    tensor = torch.ones(8, dtype=torch.complex64)
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_a_mean_of_a_transposed_tensor():
    tensor = torch.ones(4, 3).t()
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_a_mean_on_one_rank():
    work = dist.reduce(torch.ones(8), 0, op=dist.ReduceOp.AVG, async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_a_part_of_the_mean():
    inputs = [torch.ones(4) for _ in range(2)]
    work = dist.reduce_scatter(torch.empty(4), inputs, op=dist.ReduceOp.AVG, async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_a_functional_mean():
    mean = functional.all_reduce(torch.ones(8), "avg", dist.group.WORLD)
    time.sleep(0.1)
    functional.wait_tensor(mean)


def wait_late_for_a_mean_of_a_parameter():
    with torch.no_grad():
        weight = torch.ones(8, requires_grad=True)
        work = dist.all_reduce(weight, op=dist.ReduceOp.AVG, async_op=True)
        time.sleep(0.1)
        work.wait()


def divide_while_a_mean_is_made():
    tensor = torch.ones(8)
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    tensor /= 2
    work.wait()


def change_several_at_once():
    tensors = [torch.ones(8), torch.ones(3)]
    work = dist.all_reduce_coalesced(tensors, async_op=True)
    tensors[1].zero_()
    work.wait()


def change_where_a_part_of_the_sum_arrives():
    part = torch.empty(4)
    work = dist.reduce_scatter(part, [torch.ones(4) for _ in range(2)], async_op=True)
    part.zero_()
    work.wait()


def reduce_several_at_once_again_and_again():
    for _ in range(200):
        dist.all_reduce_coalesced([torch.ones(1)])


@pytest.mark.filterwarnings("ignore:.*all_reduce_coalesced:FutureWarning")
@pytest.mark.parametrize(
    ("function", "reported"),
    [
        (divide_then_wait, True),
        (divide_then_poll, True),
        (wait_then_divide, False),
        (divide_without_async, False),
        (divide_in_a_callback, False),
        (change_another_part, False),
        (change_what_is_gathered, True),
        (wait_late_for_several_at_once, False),
        (wait_late_for_a_part_of_the_sum, False),
        (wait_late_for_a_gather_in_place, False),
        (wait_late_for_a_mean, False),
        (wait_late_for_a_mean_of_complex_numbers, False),
        (wait_late_for_a_mean_of_a_transposed_tensor, False),
        (wait_late_for_a_mean_on_one_rank, False),
        (wait_late_for_a_part_of_the_mean, False),
        (wait_late_for_a_functional_mean, False),
        (wait_late_for_a_mean_of_a_parameter, False),
        (divide_while_a_mean_is_made, True),
        (change_several_at_once, True),
        (change_where_a_part_of_the_sum_arrives, True),
        (reduce_several_at_once_again_and_again, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.filterwarnings("ignore::gradsync.RankWarning")
def test_a_tensor_changed_before_completion_is_reported(function, reported):
    for _ in range(5):
        seen = run_ranks(function, 2)

        touched = {event.rank for event in seen.events if event.touched}
        assert touched == ({0, 1} if reported else set())
