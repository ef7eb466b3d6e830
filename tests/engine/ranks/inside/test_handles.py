import queue
import sys
import threading

import pytest
import torch

from gradsync.ranks.inside.watch.handles import Handles

CALLS = 2000


class Recorder:
    def __init__(self):
        self.left = []

    def leave(self, call, **_):
        self.left.append(call)

    def expect(self, call):
        pass


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
