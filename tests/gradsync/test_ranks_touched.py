"""What a rank changes while it is on its way to the others, and what it changes in time."""

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


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (divide_then_wait, True),
        (divide_then_poll, True),
        (wait_then_divide, False),
        (divide_without_async, False),
        (divide_in_a_callback, False),
        (change_another_part, False),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_tensor_that_changes_before_its_end_is_known_is_told(function, told):
    for _ in range(5):
        seen = run_ranks(function, 2)

        touched = {event.rank for event in seen.events if event.touched}
        assert touched == ({0, 1} if told else set())
