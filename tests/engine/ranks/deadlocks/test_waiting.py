"""All ways in which a program can wait for a collective, and calls that do not wait for it."""

import asyncio
import queue
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager

from gradsync import RankFailure, run_ranks
from support.rules.waiting import nobody_waited

LATE = 0.1  # seconds by which rank 1 is late, so that rank 0 can't succeed by chance
KEPT = []  # handles that the program keeps but does not use


def start():
    if dist.get_rank() == 1:
        time.sleep(LATE)
    return dist.all_reduce(torch.ones(8), async_op=True)


def futures():
    return [start().get_future() for _ in range(3)]


def work_wait():
    start().wait()


def work_wait_after_a_time_that_was_too_short():
    work = start()
    while True:
        try:
            work.wait(timedelta(milliseconds=10))
        except RuntimeError:
            continue
        return


def work_is_completed():
    work = start()
    while not work.is_completed():
        pass


def work_result():
    work = start()
    while True:
        try:
            work.result()
        except RuntimeError:
            continue
        return


def work_wait_with_a_limit_in_seconds():
    start().wait(60.0)


def work_wait_in_a_thread():
    thread = threading.Thread(target=start().wait)
    thread.start()
    thread.join()


def work_wait_in_a_pool():
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda work: work.wait(), [start() for _ in range(4)]))


def future_wait():
    start().get_future().wait()


def future_done():
    future = start().get_future()
    while not future.done():
        pass


def future_value():
    future = start().get_future()
    while True:
        try:
            future.value()
        except RuntimeError:
            continue
        return


def future_wait_of_jit():
    torch.jit.wait(start().get_future())


def future_then_wait():
    start().get_future().then(lambda future: future.value()).then(lambda _: None).wait()


def futures_wait_all():
    torch.futures.wait_all(futures())


def futures_collect_all():
    torch.futures.collect_all(futures()).wait()


def futures_collect_all_then():
    torch.futures.collect_all(futures()).then(lambda future: future.value()).wait()


def futures_collect_all_done():
    collected = torch.futures.collect_all(futures())
    while not collected.done():
        pass


def futures_collected_twice():
    inner = torch.futures.collect_all(futures())
    chained = start().get_future().then(lambda _: None)
    torch.futures.wait_all([inner, chained])


def callback_sets_an_event():
    event = threading.Event()
    start().get_future().add_done_callback(lambda _: event.set())
    event.wait()


def callback_puts_into_a_queue():
    box = queue.SimpleQueue()
    start().get_future().then(lambda _: box.put(None))
    box.get()


def callback_sets_a_future():
    mine = torch.futures.Future()
    start().get_future().add_done_callback(lambda future: mine.set_result(future.value()))
    mine.wait()


def callback_wakes_a_coroutine():
    async def average():
        loop = asyncio.get_running_loop()
        arrived = loop.create_future()
        start().get_future().add_done_callback(
            lambda _: loop.call_soon_threadsafe(arrived.set_result, None)
        )
        await arrived

    asyncio.run(average())


def hook_then_wait():
    works, weight = [], torch.ones(3, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda _: works.append(start()))
    weight.sum().backward()
    works[0].wait()


def hook_waits_at_the_end_of_backward():
    weight = torch.ones(3, requires_grad=True)
    engine = torch.autograd.Variable._execution_engine
    weight.register_post_accumulate_grad_hook(lambda _: engine.queue_callback(start().wait))
    weight.sum().backward()


def coalesced():
    with _coalescing_manager(async_ops=True) as manager:
        for size in (2, 3):
            dist.all_reduce(torch.ones(size))
    manager.wait()


def coalesced_without_async():
    with _coalescing_manager():
        dist.all_gather_into_tensor(torch.ones(6), torch.ones(3))


def ends():
    other = 1 - dist.get_rank()
    return [
        dist.P2POp(dist.isend, torch.ones(2), other),
        dist.P2POp(dist.irecv, torch.ones(2), other),
    ]


def batched():
    for work in dist.batch_isend_irecv(ends()):
        work.wait()


def functional_wait_tensor():
    functional.wait_tensor(functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD))


def functional_use():
    functional.all_reduce(torch.ones(3), "avg", dist.group.WORLD).add(1)


def functional_several():
    tensors = [torch.ones(3), torch.ones(2)]
    for one in functional.all_reduce_coalesced(tensors, "sum", dist.group.WORLD):
        one.add(1)
    for one in functional.all_gather_into_tensor_coalesced(tensors, dist.group.WORLD):
        one.add(1)


WAITS = [
    *(work_wait, work_wait_after_a_time_that_was_too_short, work_is_completed, work_result),
    *(work_wait_in_a_thread, work_wait_in_a_pool, work_wait_with_a_limit_in_seconds),
    *(future_wait, future_done, future_value, future_wait_of_jit, future_then_wait),
    *(futures_wait_all, futures_collect_all, futures_collect_all_then, futures_collect_all_done),
    *(futures_collected_twice, callback_sets_an_event, callback_puts_into_a_queue),
    *(callback_sets_a_future, callback_wakes_a_coroutine),
    *(hook_then_wait, hook_waits_at_the_end_of_backward),
    *(coalesced, coalesced_without_async, batched),
    *(functional_wait_tensor, functional_use, functional_several),
]


def no_wait():
    start()


def waits_for_the_last_alone():
    works = [start() for _ in range(3)]
    works[-1].wait()


def waits_too_short():
    with suppress(RuntimeError):
        start().wait(timedelta(milliseconds=1))


def looks_once():
    start().is_completed()


def asks_whether_it_failed():  # it is a success even while it is in progress
    while not start().is_success():
        pass


def synchronizes():  # this is for GPU streams
    start().synchronize()


def gets_the_future():
    KEPT.append(start().get_future())


def looks_at_the_future_once():
    start().get_future().done()


def chains_a_callback():
    start().get_future().then(lambda _: None)


def adds_a_callback():
    start().get_future().add_done_callback(lambda _: None)


def collects_the_futures():
    torch.futures.collect_all(futures())


def waits_for_a_part_of_the_futures():
    torch.futures.wait_all(futures()[1:])


def starts_a_thread():
    threading.Thread(target=start().wait, daemon=True).start()


def meets_in_a_barrier():  # other threads of gloo may still be working when a barrier ends
    start()
    dist.barrier()


def hook_without_a_wait():
    weight = torch.ones(3, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda _: KEPT.append(start()))
    weight.sum().backward()


def coalesced_without_a_wait():
    with _coalescing_manager(async_ops=True):
        dist.all_reduce(torch.ones(3))


def batched_without_a_wait():
    dist.batch_isend_irecv(ends())


def functional_without_a_use():
    KEPT.append(functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD))


def functional_several_without_a_use():
    tensors = [torch.ones(3), torch.ones(2)]
    KEPT.append(functional.all_reduce_coalesced(tensors, "sum", dist.group.WORLD))


DOES_NOT_WAIT = [
    *(no_wait, waits_for_the_last_alone, waits_too_short, looks_once, asks_whether_it_failed),
    *(synchronizes, gets_the_future, looks_at_the_future_once, chains_a_callback, adds_a_callback),
    *(collects_the_futures, waits_for_a_part_of_the_futures, starts_a_thread),
    *(meets_in_a_barrier, hook_without_a_wait, coalesced_without_a_wait, batched_without_a_wait),
    *(functional_without_a_use, functional_several_without_a_use),
]


def quietly(function):
    def run():
        warnings.simplefilter("ignore", FutureWarning)  # from deprecated names in torch
        function()

    return run


@pytest.mark.parametrize("function", WAITS, ids=lambda function: function.__name__)
def test_a_rank_that_learns_of_completion_has_waited(function):
    seen = run_ranks(quietly(function), 2)

    assert nobody_waited(seen, "Waiting") is None
    assert all(seen.collectives(rank) for rank in range(2))


@pytest.mark.filterwarnings("ignore::gradsync.RankWarning")
@pytest.mark.parametrize("function", DOES_NOT_WAIT, ids=lambda function: function.__name__)
def test_a_rank_that_does_not_learn_of_completion_has_not_waited(function):
    diagnosis = nobody_waited(run_ranks(quietly(function), 2), "Waiting")

    assert diagnosis is not None
    assert diagnosis.code == "no-rank-waits"
    assert 0 in diagnosis.ranks


def test_a_wait_for_several_futures_names_the_incomplete_one():
    def function(rank):
        works = [dist.all_reduce(torch.ones(size), async_op=True) for size in (2, 3)[: 2 - rank]]
        torch.futures.wait_all([work.get_future() for work in works])

    with pytest.raises(RankFailure) as caught:
        run_ranks(function, 2)

    failure = caught.value.observation.failure
    assert failure.diagnosis.code == "deadlock-rank-missing"
    assert failure.diagnosis.ranks == (1,)
    assert "all_reduce #2 (3 x float32" in failure.diagnosis.explanation


@pytest.mark.parametrize("seconds", [0.01, 3 * LATE])
def test_a_rank_that_gives_up_a_wait_may_enter_another_collective(seconds):
    def function(rank):
        other = dist.new_group([0, 1])  # gloo closes a connection on which a wait timed out
        if rank == 0:
            work = dist.irecv(torch.zeros(1), 1, group=other)
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=seconds))
            time.sleep(5 * LATE)
            dist.send(torch.ones(1), 1, tag=1)
        else:
            time.sleep(LATE)
            dist.recv(torch.zeros(1), 0, tag=1)
        return rank

    assert list(run_ranks(function, 2)) == [0, 1]
