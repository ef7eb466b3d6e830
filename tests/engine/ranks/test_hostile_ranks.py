"""Hostile ranks: the run ends, they are named, and other ranks are not affected."""

import json
import os
import signal
import socket
import sys
import time

import pytest
import torch.distributed as dist

from gradsync import RankFailure, run_ranks
from gradsync.ranks.protocol.events import Writer
from gradsync.ranks.protocol.wire import PREFIX, pack
from gradsync.records import Collective, Event

A_GIGABYTE_TO_COME = PREFIX.pack(20, 2**30)


def found(name):
    """Return a variable of a calling frame by its name, as a learner's code could."""
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]


def channel():
    """Return the rank's channel to the trusted side."""
    return found("channel")


def answer(value, body=b""):
    """Return a valid answer for this run."""
    return pack("answer", {"value": value, "nonce": found("setup")["nonce"]}, body)


def enter(call, op="barrier", peer=None):
    """Return the event of a collective that is sent in full and gets no number."""
    collective = Collective(op, "x", (0, 1), peer=peer)
    *plain, [_, *fields] = Writer().row(Event(0, "enter", call, 1.0, 1, collective=collective))
    return [*plain, [False, *fields]]


def hostile(attack):
    """Let rank 1 attack while rank 0 waits for it."""

    def run(rank):
        if rank == 1:
            attack()
            time.sleep(60)
        dist.barrier()

    return run


def says(data):
    def attack():
        channel().sendall(data)

    return attack


def answers(value, body=b""):
    def attack():
        channel().sendall(answer(value, body))

    return attack


def floods_with_entering():
    for call in range(10_000_000):
        channel().sendall(pack("events", {"events": [enter(call)]}))


def floods_with_messages():
    for first in range(0, 10_000_000, 500):
        said = []
        for call in range(first, first + 500):
            said += [enter(call, "send", peer=0), Writer().row(Event(0, "exit", call, 1.0, 1))]
        channel().sendall(pack("events", {"events": said}))


def sends_a_gigabyte():
    channel().sendall(A_GIGABYTE_TO_COME)
    while True:
        channel().sendall(bytes(2**20))


def sends_bytes_without_end():
    while True:
        channel().sendall(bytes(2**20))


@pytest.mark.parametrize(
    "attack",
    [
        says(b"garbage " * 10),
        says(pack("surprise")),
        says(pack("ready")),
        says(pack("events", {"events": [{}]})),
        answers({"tensor": "float32", "shape": [2**40]}, b"1234"),
        says(pack("answer", {"value": 1, "nonce": "0" * 32})),
        sends_a_gigabyte,
        sends_bytes_without_end,
    ],
    ids=[
        "garbage",
        "unknown kind",
        "ready again",
        "no event",
        "lying shape",
        "another run's nonce",
        "gigabyte",
        "endless",
    ],
)
def test_data_that_no_unmodified_rank_sends_is_tampering(failure_of, attack):
    failure = failure_of(hostile(attack))

    assert (failure.status, failure.diagnosis.code) == ("crashed", "tampering")
    assert failure.diagnosis.ranks == (1,)


@pytest.mark.parametrize(
    "attack", [floods_with_entering, pytest.param(floods_with_messages, marks=pytest.mark.slow)]
)
def test_endless_calls_are_stopped_like_an_endless_loop(failure_of, attack):
    failure = failure_of(hostile(attack))

    assert (failure.status, failure.diagnosis.code) == ("timeout", "too-slow")
    assert failure.diagnosis.ranks == (1,)


def closes():
    channel().close()


def shuts_down():
    channel().shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("attack", [closes, shuts_down])
def test_a_rank_that_closes_its_connection_but_runs_on_is_stopped(failure_of, attack):
    failure = failure_of(hostile(attack))

    assert (failure.status, failure.diagnosis.code) == ("crashed", "rank-crashed")
    assert failure.diagnosis.ranks == (1,)
    assert "closed its connection" in failure.diagnosis.explanation


def stalls_midway():
    channel().sendall(answer(1, b"1234")[:-1])


def floods_with_waiting():
    call = 0
    while True:
        rows = [Writer().row(Event(0, "wait", 0, 1.0, call + i)) for i in range(100)]
        call += 100
        channel().sendall(pack("events", {"events": rows}))


def floods_its_stacks():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    stacks = found("stacks")
    while True:
        stacks.sendall(b"File nonsense")
        time.sleep(0.05)


def hides_where_it_is():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


@pytest.mark.parametrize(
    "attack", [stalls_midway, floods_with_waiting, floods_its_stacks, hides_where_it_is]
)
def test_no_rank_can_evade_the_time_limit(attack):
    with pytest.raises(RankFailure) as caught:
        run_ranks(hostile(attack), 2, timeout=0.5)

    assert caught.value.observation.failure.diagnosis.code == "too-slow"
    assert caught.value.observation.seconds < 10


def test_a_forged_answer_does_not_stop_the_clock():
    def forge(rank):
        if rank == 0:
            channel().sendall(answer(100))
            os._exit(0)
        time.sleep(60)

    with pytest.raises(RankFailure) as caught:
        run_ranks(forge, 2, timeout=0.5)

    assert caught.value.observation.failure.diagnosis.ranks == (1,)


def test_data_after_the_answer_is_ignored():
    def prattle(rank):
        channel().sendall(answer(rank) + b"garbage" * 1000)

    assert list(run_ranks(prattle, 2)) == [0, 1]


def test_a_deeply_nested_frame_raises_nothing_on_the_trusted_side(failure_of):
    deep = json.dumps({"kind": "raised", "code": 0}).replace("0", "[" * 500 + "]" * 500).encode()

    failure = failure_of(hostile(says(PREFIX.pack(len(deep), 0) + deep)))

    assert failure.diagnosis.ranks == (1,)


def test_a_rank_that_suspends_itself_is_killed():
    def stop(rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises(RankFailure) as caught:
        run_ranks(stop, 2, timeout=0.5)

    assert caught.value.observation.failure.diagnosis.ranks == (1,)
