"""Which threads and processes of a rank are reported as able to enter a collective."""

import _thread
import logging.handlers
import multiprocessing
import queue
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks
from gradsync.ranks.inside.watch.recorder import Recorder
from gradsync.ranks.inside.watch.threads import THREADS, nothing
from gradsync.ranks.protocol import events, wire

LATE = 0.2  # seconds after which a helper thread enters its collective
ROUNDS = 100


def run_and_join(target, *arguments):
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.join()
    return thread


@pytest.fixture
def read_waits():
    """While a thread waits for a collective: a function that reads the next events."""
    ours, theirs = socket.socketpair()
    reader, over = events.Reader(0), threading.Event()
    with ours, theirs:
        recorder = Recorder(theirs, 0, 0.0)
        THREADS.changed = recorder.report_waits

        def wait():
            recorder.wait(0)
            over.wait()

        thread = threading.Thread(target=wait)
        thread.start()
        read = lambda: reader.read(wire.receive(ours))  # noqa: E731
        read()
        yield read
        THREADS.changed = nothing
        over.set()
        thread.join()


def test_a_thread_that_joins_a_running_thread_can_not_act(read_waits):
    over = threading.Event()
    joined = threading.Thread(target=over.wait)
    joined.start()

    with THREADS.joining(joined):
        [event] = read_waits()

    over.set()
    joined.join()
    assert event.others == 1  # the joined thread


def test_a_thread_that_joins_an_ended_thread_can_act(read_waits):

    with THREADS.joining(run_and_join(int)):
        [event] = read_waits()

    assert event.others == 1  # this thread


def test_a_thread_that_joins_one_of_multiprocessing_can_act(read_waits):
    over = threading.Event()

    def feed():
        over.wait()

    feed.__module__ = "multiprocessing.queues"
    joined = threading.Thread(target=feed)
    joined.start()

    with THREADS.joining(joined):
        [event] = read_waits()

    over.set()
    joined.join()
    assert event.others == 1  # this thread


def run_late(send):
    time.sleep(LATE)
    send()


def start_in_a_thread_pool(send):
    return ThreadPool(1).apply_async(run_late, (send,))


def start_in_the_callback_of_a_pool(send):
    pool = multiprocessing.get_context("fork").Pool(1)
    return pool.apply_async(time.sleep, (LATE,), callback=lambda _: send())


def start_a_thread_that_python_does_not_list(send):
    return _thread.start_new_thread(run_late, (send,))


@pytest.mark.parametrize(
    "start",
    [
        start_in_a_thread_pool,
        start_in_the_callback_of_a_pool,
        start_a_thread_that_python_does_not_list,
    ],
)
def test_helper_threads_can_enter_collectives(start):
    def function(rank):
        sent = queue.SimpleQueue()

        def send():
            dist.send(torch.full((1,), float(rank)), 1 - rank)
            sent.put(True)

        _job = start(send)  # keeps the pool
        tensor = torch.zeros(1)
        dist.recv(tensor, 1 - rank)
        return tensor.item(), sent.get()

    assert list(run_ranks(function, 2, timeout=20)) == [(1, True), (0, True)]


def test_a_deadlock_is_found_though_an_unlisted_thread_has_ended():
    def function(rank):
        done = queue.SimpleQueue()
        _thread.start_new_thread(lambda: done.put(threading.current_thread().name), ())
        done.get()
        if rank == 0:
            time.sleep(LATE)  # the thread ends
            dist.barrier()

    with pytest.raises(RankFailure, match="barrier") as caught:
        run_ranks(function, 2, timeout=20)

    assert caught.value.observation.seconds < 10


def test_a_child_process_reports_nothing_in_the_name_of_its_rank():
    def function():
        dist.barrier()  # the end of this call is reported with the next one
        child = multiprocessing.get_context("fork").Process(target=run_and_join, args=(int,))
        child.start()
        child.join()
        dist.barrier()
        return child.exitcode

    seen = run_ranks(function, 2)

    assert list(seen) == [0, 0]
    exits = Counter((event.rank, event.call) for event in seen.events if event.kind == "exit")
    assert set(exits.values()) == {1}


def test_two_threads_that_use_one_group_in_different_orders_are_told_to_use_two():
    def function(rank):
        thread = threading.Thread(target=dist.broadcast, args=(torch.ones(3), 0))
        if rank == 0:
            thread.start()
            time.sleep(LATE)
        dist.all_reduce(torch.ones(4))
        if rank == 1:
            thread.start()
        thread.join()

    with pytest.raises(RankFailure, match="give each thread a group of its own") as caught:
        run_ranks(function, 2, timeout=60)

    assert caught.value.observation.failure.status == "deadlock"


def keep_an_idle_pool():
    pool = ThreadPoolExecutor(2)
    pool.submit(int).result()
    return pool


def keep_an_idle_pool_of_multiprocessing():
    pool = ThreadPool(2)
    pool.map(abs, [1, 2])
    return pool


def listen_to_a_queue():
    listener = logging.handlers.QueueListener(queue.Queue())
    listener.start()
    return listener


def wait_for_an_event():
    event = threading.Event()
    threading.Thread(target=event.wait, daemon=True).start()
    return event


def end_soon():
    thread = threading.Thread(target=time.sleep, args=(LATE,))
    thread.start()
    return thread


@pytest.mark.parametrize(
    "start",
    [
        keep_an_idle_pool,
        keep_an_idle_pool_of_multiprocessing,
        listen_to_a_queue,
        wait_for_an_event,
        end_soon,
    ],
)
def test_a_thread_that_can_not_act_hides_no_deadlock(start):
    def function(rank):
        _kept = start()
        if rank == 0:
            dist.barrier()

    with pytest.raises(RankFailure, match="returned without calling barrier") as caught:
        run_ranks(function, 2, timeout=60)

    assert caught.value.observation.seconds < 10


def test_a_main_thread_that_waits_for_a_job_hides_no_deadlock():
    def function(rank):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(dist.barrier if rank == 0 else int).result()

    with pytest.raises(RankFailure, match="returned without calling barrier") as caught:
        run_ranks(function, 2, timeout=60)

    assert caught.value.observation.seconds < 10


def hand_over_by_events():
    """Wake a thread, then block at once: the thread must count as able."""
    wake, done = threading.Event(), threading.Event()

    def send():
        for _ in range(ROUNDS):
            wake.wait()
            wake.clear()
            dist.send(torch.ones(1), 1 - dist.get_rank())
            done.set()

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(ROUNDS):
        wake.set()
        dist.recv(torch.zeros(1), 1 - dist.get_rank())
        done.wait()
        done.clear()
    thread.join()


def hand_over_by_a_queue():
    jobs = queue.Queue()

    def work():
        while (job := jobs.get()) is not None:
            job()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    other = 1 - dist.get_rank()
    for tag in range(ROUNDS):
        jobs.put(lambda tag=tag: dist.send(torch.ones(1), other, tag=tag))
        dist.recv(torch.zeros(1), other, tag=tag)
    for _ in threads:
        jobs.put(None)


def hand_over_by_a_pool():
    other = 1 - dist.get_rank()
    with ThreadPoolExecutor(3) as pool:
        for tag in range(ROUNDS):
            job = pool.submit(dist.send, torch.ones(1), other, tag=tag)
            dist.recv(torch.zeros(1), other, tag=tag)
            job.result()


def hand_over_by_a_late_notification():
    """Be woken by a thread that itself waits with a time limit."""
    event = threading.Event()
    threading.Timer(LATE, event.set).start()
    if dist.get_rank() == 0:
        event.wait()
    dist.barrier()


@pytest.mark.parametrize(
    "function",
    [
        hand_over_by_events,
        hand_over_by_a_queue,
        hand_over_by_a_pool,
        hand_over_by_a_late_notification,
    ],
)
def test_a_thread_that_is_notified_can_act_at_once(function):
    run_ranks(function, 2, timeout=60)
