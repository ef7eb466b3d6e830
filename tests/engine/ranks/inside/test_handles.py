import queue
import sys
import threading
import time

import pytest
import torch

from gradsync.ranks.inside.watch.handles import CALLBACK_SECONDS, Handles

CALLS = 2000


class Recorder:
    def __init__(self):
        self.left = []
        self.expected = []

    def leave(self, call, **_):
        self.left.append(call)

    def expect(self, call):
        self.expected.append(call)


@pytest.fixture
def frequent_switches():
    """Let Python change threads after nearly each instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-7)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_callbacks_may_run_while_the_program_adds_handles():
    handles = Handles(Recorder())
    callbacks = queue.SimpleQueue()
    errors = []

    def run_callbacks():
        try:
            while callback := callbacks.get():
                callback(None)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run_callbacks, daemon=True)
    thread.start()
    for call in range(CALLS):
        work = torch.futures.Future()
        handles.begin(work, call)
        callbacks.put(handles.watched([call], lambda _: None))
        for _ in range(3):
            handles.add(torch.futures.Future(), [call])
            handles.calls_of(work)
    callbacks.put(None)
    thread.join()

    assert not errors
    assert sorted(handles.recorder.left) == list(range(CALLS))


def test_a_handle_may_be_added_again():
    handles = Handles(Recorder())
    work, future = torch.futures.Future(), torch.futures.Future()
    handles.begin(work, 0)
    handles.add(future, [0])
    handles.add(future, [0])

    handles.done([0])

    assert handles.recorder.left == [0]
    assert not handles.calls_of(future)


def test_the_end_of_a_call_is_reported_though_its_callback_starts_late():
    handles = Handles(Recorder())
    work = torch.futures.Future()
    handles.begin(work, 0)
    callback = handles.watched([0], lambda _: None)
    work.set_result(None)
    handles.done([0])  # the program has waited for the future
    assert handles.recorder.left == []
    thread = threading.Timer(0.1, callback, [work])
    thread.start()

    handles.settle()

    assert handles.recorder.left == [0]
    thread.join()


def test_the_answer_does_not_wait_for_callbacks_of_incomplete_calls():
    handles = Handles(Recorder())
    handles.begin(torch.futures.Future(), 0)
    handles.watched([0], lambda _: None)
    began = time.monotonic()

    handles.settle()

    assert time.monotonic() - began < CALLBACK_SECONDS


def test_a_callback_of_a_call_that_has_ended_is_not_expected():
    handles = Handles(Recorder())
    handles.begin(torch.futures.Future(), 0)
    handles.done([0])

    handles.watched([0], lambda _: None)

    assert handles.recorder.expected == []
