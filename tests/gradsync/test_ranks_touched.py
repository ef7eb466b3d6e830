"""What a rank changes while it is on its way to the others, and what it changes in time."""

import time

import pytest
import torch
import torch.distributed as dist

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


# What follows comes by a copy, on a thread of gloo's: long before anybody waits for it.


def wait_late_for_several_at_once():
    work = dist.all_reduce_coalesced([torch.ones(8), torch.ones(3)], async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_a_part_of_the_sum():
    work = dist.reduce_scatter_tensor(torch.empty(4), torch.ones(8), async_op=True)
    time.sleep(0.1)
    work.wait()


def wait_late_for_what_comes_into_the_place_of_its_own():
    parts = [torch.ones(8) for _ in range(2)]
    work = dist.all_gather(parts, parts[dist.get_rank()], async_op=True)
    time.sleep(0.1)
    work.wait()


def reduce_several_at_once_again_and_again():
    for _ in range(200):
        dist.all_reduce_coalesced([torch.ones(1)])


@pytest.mark.filterwarnings("ignore:.*all_reduce_coalesced:FutureWarning")
@pytest.mark.parametrize(
    ("function", "told"),
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
        (wait_late_for_what_comes_into_the_place_of_its_own, False),
        (reduce_several_at_once_again_and_again, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_tensor_that_changes_before_its_end_is_known_is_told(function, told):
    for _ in range(5):
        seen = run_ranks(function, 2)

        touched = {event.rank for event in seen.events if event.touched}
        assert touched == ({0, 1} if told else set())
