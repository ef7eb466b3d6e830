"""Which threads and processes of a rank are reported as able to enter a collective."""

import _thread
import multiprocessing
import queue
import socket
import threading
import time
from collections import Counter
from multiprocessing.pool import ThreadPool

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks
from gradsync.ranks.inside.watch.recorder import Recorder
from gradsync.ranks.protocol import events, wire

LATE = 0.2  # seconds after which a helper thread enters its collective


def run_and_join(target, *arguments):
    thread = threading.Thread(target=target, args=arguments)
    thread.start()
    thread.join()
    return thread


@pytest.fixture
def waiting_thread():
    """A recorder, the events that it sends, and a thread that waits for a collective."""
    ours, theirs = socket.socketpair()
    reader, over = events.Reader(0), threading.Event()
    with ours, theirs:
        recorder = Recorder(theirs, 0, 0.0)

        def wait():
            recorder.wait(0)
            over.wait()

        thread = threading.Thread(target=wait)
        thread.start()
        read = lambda: reader.read(wire.receive(ours))  # noqa: E731
        read()
        yield recorder, read
        over.set()
        thread.join()


def test_a_thread_that_joins_a_running_thread_can_not_act(waiting_thread):
    recorder, read = waiting_thread
    over = threading.Event()
    joined = threading.Thread(target=over.wait)
    joined.start()

    with recorder.asleep(joined):
        [event] = read()

    over.set()
    joined.join()
    assert event.others == 1  # the joined thread


def test_a_thread_that_joins_an_ended_thread_can_act(waiting_thread):
    recorder, read = waiting_thread

    with recorder.asleep(run_and_join(int)):
        [event] = read()

    assert event.others == 1  # this thread


def test_a_thread_that_joins_one_of_multiprocessing_can_act(waiting_thread):
    recorder, read = waiting_thread
    over = threading.Event()

    def feed():
        over.wait()

    feed.__module__ = "multiprocessing.queues"
    joined = threading.Thread(target=feed)
    joined.start()

    with recorder.asleep(joined):
        [event] = read()

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
