"""Figures of training steps from the events of a run."""

import pytest

from gradsync.records import Collective, Event, Observation
from gradsync.scale.mine import WARM, figures

MAIN = 1  # thread
STEP = 1.0  # seconds between barriers


def run(step_of, steps=WARM + 2):
    """Return an observation of one rank, whose steps have the events of `step_of(start, call)`."""
    events, call = [], 0
    for number in range(steps + 1):
        start = number * STEP
        events += [
            entered("barrier", call, start - 0.1, ()),
            Event(0, "exit", call, start, MAIN),
        ]
        if number < steps:
            events += step_of(start, call + 1)
        call += 10
    return Observation(1, (None,), tuple(events), ("",), 1.0)


def entered(op, call, seconds, shapes, by_test=True):
    collective = Collective(op, "world", (0,), shapes, "float32", by_test=by_test)
    return Event(0, "enter", call, seconds, MAIN, collective=collective)


def half_hidden(start, call):
    """An all-reduce of 100 floats that takes 0.4 s; the rank waits in the second half."""
    return [
        entered("all_reduce", call, start + 0.2, ((10, 10),)),
        Event(0, "wait", call, start + 0.4, MAIN),
        Event(0, "exit", call, start + 0.6, MAIN),
    ]


def test_steps_are_between_barriers():
    found = figures("ours", run(half_hidden))

    assert found.seconds == pytest.approx(0.9)
    assert (found.name, found.collectives, found.bytes) == ("ours", 1, 400)


def test_communication_is_hidden_while_the_rank_does_not_wait():
    assert figures("ours", run(half_hidden)).hidden == pytest.approx(0.5)


def test_a_step_without_collectives_hides_nothing():
    found = figures("ours", run(lambda *_: []))

    assert (found.collectives, found.hidden) == (0, None)


def test_a_barrier_of_the_learner_does_not_end_a_step():
    def with_barrier(start, call):
        return [
            entered("barrier", call, start + 0.2, (), by_test=False),
            Event(0, "exit", call, start + 0.3, MAIN),
        ]

    found = figures("ours", run(with_barrier))

    assert (found.seconds, found.collectives) == (pytest.approx(0.9), 1)


def test_a_run_that_is_too_short_has_no_figures():
    assert figures("ours", run(half_hidden, steps=WARM)) is None
