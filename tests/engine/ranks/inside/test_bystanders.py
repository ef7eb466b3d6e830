"""Threads that can't change anything for a rank that waits, and threads that could."""

import dataclasses
import functools
import logging
import os
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from gradsync import RankFailure, run_ranks
from gradsync.ranks.inside.watch import bystanders

LOG = logging.getLogger("gradsync.tests.bystanders")
LOG.propagate = False
LATE = 0.3  # seconds until a helper thread makes its call


@dataclasses.dataclass
class State:
    step: int = 0


class Heart(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.model = torch.nn.Linear(1, 1)  # not used by the thread

    def run(self):
        while not self.stopped.wait(0.1):
            self.beat()

    def beat(self):
        LOG.debug("alive")


class Meeting(Heart):
    def beat(self):
        dist.barrier()


class Late:
    def __str__(self):
        dist.barrier()
        return "late"

    @property
    def now(self):
        return dist.barrier()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        dist.barrier()


def log_until(stop, state):
    while not stop.wait(0.1):
        with open(os.devnull, "w") as file:  # noqa: PTH123 - as heartbeats do
            file.write(f"{state} {state.step} {os.getpid()} {time.strftime('%H:%M')}")


def count(state, lock):
    while True:
        time.sleep(0.1)
        with lock:
            state["step"] += 1


def print_rank():
    while True:
        try:
            time.sleep(0.1)
            print(dist.is_initialized() and dist.get_rank(), file=sys.stderr)
        except RuntimeError as error:
            LOG.warning("failed: %s", error)


def sleep_then(function, *arguments):
    def run():
        time.sleep(60)
        function(*arguments)

    return run


def meet_in_a_nested_function():
    def meet():
        dist.barrier()

    time.sleep(60)
    [meet() for _ in range(2)]


def import_and_meet():
    time.sleep(60)
    import torch.distributed as imported

    imported.barrier()


def compute_the_name():
    time.sleep(60)
    getattr(dist, "bar" + "rier")()


def choose(late=None):
    time.sleep(60)
    (late if late else time).now()


def call(function, _):
    function()


def call_from_the_stack(jobs):
    call(jobs.pop(), time.sleep(60))


def meet_at_the_exit():
    with Late():
        time.sleep(60)


def start_a_thread():
    time.sleep(60)
    threading.Thread(target=print).start()


def run_all(jobs):
    for job in jobs:
        job()


def examine(makes):
    """Start a thread of each kind, and return for each whether it is a bystander."""
    found = []
    for make in makes:
        thread = make()
        thread.daemon = True
        thread.start()
        time.sleep(0.05)
        found.append(bystanders.are_bystanders([thread]))
    return found


def examined(*makes):
    """Examine threads on a rank: they end with it."""
    [found] = run_ranks(examine, 1, process_group=False, makes=makes)
    return found


def thread(target, *arguments):
    return threading.Thread(target=target, args=arguments)


BYSTANDERS = (
    lambda: thread(log_until, threading.Event(), State()),
    lambda: thread(count, {"step": 0}, threading.Lock()),
    lambda: thread(print_rank),
    lambda: thread(lambda: time.sleep(60)),
    lambda: thread(time.sleep, 60),
    lambda: thread(sleep_then(print, "late")),
    lambda: thread(functools.partial(time.sleep, 60)),
    lambda: threading.Timer(60, print, ["late"]),
    Heart,
)
OTHERS = (
    lambda: thread(sleep_then(dist.barrier)),
    lambda: thread(sleep_then(threading.Event().set)),
    lambda: thread(sleep_then(os._exit, 0)),
    lambda: thread(sleep_then(os.kill, 0, 0)),
    lambda: thread(sleep_then(print, Late())),
    lambda: thread(sleep_then(run_all, [print, [dist.barrier]])),
    lambda: thread(sleep_then(Late)),
    lambda: thread(sleep_then(next, iter([]))),
    lambda: thread(meet_in_a_nested_function),
    lambda: thread(import_and_meet),
    lambda: thread(compute_the_name),
    lambda: thread(choose, Late()),
    lambda: thread(call_from_the_stack, [dist.barrier]),
    lambda: thread(meet_at_the_exit),
    lambda: thread(start_a_thread),
    lambda: thread(run_all, [functools.partial(time.sleep, 60), print]),
    lambda: thread(list, map(call, [functools.partial(time.sleep, 60), print], [0, 0])),
    lambda: thread(threading.Event().wait),
    lambda: threading.Timer(60, dist.barrier),
    lambda: threading.Timer(60, Late().__str__),
    Meeting,
)


def test_a_thread_that_reaches_only_its_own_code_and_plain_data_is_a_bystander():
    assert examined(*BYSTANDERS) == [True] * len(BYSTANDERS)


def test_a_thread_that_could_act_is_not_a_bystander():
    assert examined(*OTHERS) == [False] * len(OTHERS)


def test_a_log_handler_of_the_users_could_act():
    class Handler(logging.Handler):
        def emit(self, _):
            dist.barrier()

    def heart():
        LOG.addHandler(Handler())
        return Heart()

    assert examined(heart) == [False]


def start_a_heart():
    Heart().start()


def start_a_heart_that_python_joins():
    heart = Heart()
    heart.daemon = False
    heart.start()


def start_a_timer():
    threading.Timer(60, print, ["late"]).start()


@pytest.mark.parametrize("start", [start_a_heart, start_a_heart_that_python_joins, start_a_timer])
def test_a_bystander_hides_no_deadlock(start):
    def function(rank):
        start()
        if rank == 0:
            dist.barrier()

    with pytest.raises(RankFailure, match="Rank 1 returned without calling barrier") as caught:
        run_ranks(function, 2, timeout=60)

    assert caught.value.observation.failure.status == "deadlock"


def call_in_a_timer():
    threading.Timer(LATE, dist.barrier).start()


def call_what_another_thread_provides():
    jobs = [print]
    threading.Thread(target=lambda: [time.sleep(LATE / 2), jobs.insert(0, dist.barrier)]).start()

    def beat():
        time.sleep(LATE)
        jobs[0]()

    threading.Thread(target=beat).start()


def call_after_a_join():
    heart = threading.Thread(target=time.sleep, args=(LATE,))
    heart.start()
    threading.Thread(target=lambda: [heart.join(), dist.barrier()]).start()


@pytest.mark.parametrize(
    "help_later", [call_in_a_timer, call_what_another_thread_provides, call_after_a_join]
)
def test_a_thread_that_makes_the_missing_call_prevents_the_deadlock(help_later):
    def function(rank):
        if rank == 0:
            dist.barrier()
            dist.send(torch.ones(1), 1)
        else:
            help_later()
            dist.recv(torch.zeros(1), 0)

    run_ranks(function, 2, timeout=60)
