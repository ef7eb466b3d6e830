"""Mistakes in waiting for collectives, recognised by a run's events."""

import pytest

from gradsync.records import Collective, Diagnosis, Event, Failure, Observation
from support.rules.waiting import (
    nobody_waited,
    raised_before_waiting,
    skipped_because_of_nan,
    stepped_too_early,
)

GUIDE = "Gradient aggregation"


def started(op="all_reduce", rank=0, call=0):
    collective = Collective(op, "world", (0, 1), where=f"trainer.py:{call + 1}")
    return Event(rank, "enter", call, 0.0, 1, collective=collective)


def left(rank=0, call=0, touched=False):
    return Event(rank, "exit", call, 0.1, 1, touched=touched)


def observed(events, failure=None):
    return Observation(2, (None, None), tuple(events), ("", ""), 0.1, failure)


def test_a_collective_that_never_completes_is_reported():
    events = [started(call=0), started(call=1), left(call=1), started(rank=1), left(rank=1)]

    diagnosis = nobody_waited(observed(events), GUIDE)

    assert (diagnosis.code, diagnosis.ranks) == ("no-rank-waits", (0,))
    assert diagnosis.where == "trainer.py:1"


def test_a_tensor_that_is_changed_too_early_is_reported():
    events = [started(call=0), left(call=0), started(call=1), left(call=1, touched=True)]

    diagnosis = nobody_waited(observed(events), GUIDE)

    assert (diagnosis.code, diagnosis.ranks) == ("no-rank-waits", (0,))
    assert diagnosis.where == "trainer.py:2"
    assert "the outcome is a race" in diagnosis.explanation


def test_a_receive_that_is_never_waited_for_is_reported():
    diagnosis = nobody_waited(observed([started("recv")]), GUIDE)

    assert diagnosis.code == "no-rank-waits"
    assert "does not reliably contain the received data" in diagnosis.explanation


@pytest.mark.parametrize("op", ["send", "barrier"])
def test_a_call_without_a_result_need_not_be_waited_for(op):
    assert nobody_waited(observed([started(op)]), GUIDE) is None


def test_only_the_chosen_collectives_must_be_waited_for():
    assert nobody_waited(observed([started()]), GUIDE, lambda _collective: False) is None


def waits(rank=0, call=0):
    return Event(rank, "wait", call, 0.05, 1)


@pytest.mark.parametrize(
    ("events", "ranks", "known"),
    [
        ([started()], (0,), True),
        ([started(), waits()], (0,), False),
        ([started(), left()], (0,), False),
        ([started("barrier")], (0,), False),
        ([started(rank=1)], (0,), False),
        ([started()], (0, 1), False),
        ([started()], (1,), False),
    ],
)
def test_an_exception_before_waiting_is_explained(events, ranks, known):
    failure = Failure("error", Diagnosis("exception", ranks, "Rank 0 raised ZeroDivisionError."))

    diagnosis = raised_before_waiting(0, "no sample", GUIDE)(observed(events, failure), None)

    assert (diagnosis is not None) == known
    if known:
        assert (diagnosis.code, diagnosis.where) == ("no-rank-waits", "trainer.py:1")
        assert diagnosis.explanation.startswith("Rank 0 raised ZeroDivisionError. This rank has")


@pytest.mark.parametrize(
    ("came", "missing", "known"), [(1, (0,), True), (0, (0,), False), (1, (1,), False)]
)
def test_a_rank_that_skips_a_collective_because_of_nan_is_reported(came, missing, known):
    failure = Failure("deadlock", Diagnosis("deadlock-rank-missing", missing, "rank 0 is missing"))
    seen = observed([started(call=call) for call in range(came)], failure)

    diagnosis = skipped_because_of_nan(0, "a loss", GUIDE)(seen, None)

    assert (diagnosis is not None) == known
    if known:
        assert diagnosis.code == "deadlock-rank-missing"
        assert "Only rank 0 had a loss that is NaN" in diagnosis.explanation


STEP_FIRST, RIGHT = ["step", "finish"], ["finish", "step"]


@pytest.mark.parametrize(
    ("calls", "ranks", "said"),
    [
        ([[RIGHT], [STEP_FIRST]], (1,), "called before finish()"),
        ([[RIGHT, ["step"]], [RIGHT, ["step"]]], (0, 1), "called without finish()"),
    ],
)
def test_a_step_before_finish_explains_wrong_weights(calls, ranks, said):
    diagnosis = stepped_too_early(calls, GUIDE)(observed([]), [1.0, 1.0])

    assert (diagnosis.code, diagnosis.ranks) == ("no-rank-waits", ranks)
    assert said in diagnosis.explanation


@pytest.mark.parametrize("order", [RIGHT, ["finish"], [], ["finish", "step", "finish", "step"]])
def test_a_step_after_finish_explains_nothing(order):
    assert stepped_too_early([[order]] * 2, GUIDE)(observed([]), [1.0, 1.0]) is None
