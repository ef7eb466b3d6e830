"""Threads that can't call a collective, and threads that could."""

import logging
import queue
import socketserver
import threading
import time
from functools import partial

import pytest
import torch.distributed as dist

from gradsync.ranks.inside.watch.reach import conditions_of

LOG = logging.getLogger(__name__)
STOP = threading.Event()


def sleep_and_print():
    while True:
        time.sleep(0.1)
        print(time.time(), flush=True)


def log_until(stop, state):
    while not stop.wait(0.1):
        LOG.info("step %s", state["step"])
        sleep_and_print()


def meet():
    dist.barrier()


def meet_later():
    time.sleep(1)
    meet()


def import_it():
    import torch.distributed as imported

    imported.barrier()


def run_jobs(jobs):
    jobs.get()()


def evaluate():
    eval("meet()")


class Heart(threading.Thread):
    def __init__(self):
        super().__init__()
        self.beats = []

    def run(self):
        while not STOP.wait(1):
            self.beat()

    def beat(self):
        self.beats.append(time.time())


class Meeting(Heart):
    def beat(self):
        meet()


class Slots:
    __slots__ = ("function",)

    def call(self):
        self.function()


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        meet()


def thread(target, *args):
    return threading.Thread(target=target, args=args)


@pytest.mark.parametrize(
    "started",
    [
        thread(sleep_and_print),
        thread(log_until, STOP, {"step": 3}),
        thread(time.sleep, 60),
        thread(partial(log_until, STOP, {})),
        thread(lambda: STOP.wait(3)),
        thread(Heart().beat),
        Heart(),
        threading.Timer(60, print, ["late"]),
    ],
)
def test_a_thread_without_a_way_to_torch_can_not_call(started):
    assert conditions_of(started) is not None


@pytest.mark.parametrize(
    "started",
    [
        thread(meet),
        thread(meet_later),
        thread(import_it),
        thread(run_jobs, queue.Queue()),
        thread(evaluate),
        thread(dist.barrier),
        thread(lambda: [meet() for _ in range(3)]),
        thread(Slots().call),
        thread(next, (meet() for _ in range(3))),
        Meeting(),
        threading.Timer(60, meet),
    ],
)
def test_a_thread_with_a_way_to_torch_could_call(started):
    assert conditions_of(started) is None


def test_a_server_could_call_what_its_handlers_call():
    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        assert conditions_of(thread(server.serve_forever)) is None


def test_a_thread_reaches_the_conditions_that_it_could_notify():
    assert STOP._cond in conditions_of(thread(STOP.set))
    assert STOP._cond not in conditions_of(threading.Timer(60, print))
