"""The rules on pipelines, given the stages' gradients, losses and order."""

from dataclasses import replace

import numpy as np
import pytest

from gradsync.records import Collective, Diagnosis, Event, Failure, Observation
from gradsync.testing.rules import first_diagnosis
from support.rules.pipelines import (
    diagnose_1f1b,
    diagnose_order,
    idle_stages,
    pipeline_gradient_mistakes,
    pipeline_loss_mistakes,
    stages_summed,
    too_many_alive,
)

RIGHT = [{"a": np.array([1.0, 2.0])}, {"b": np.array([3.0])}]


def times(factor):
    return [{name: factor * value for name, value in stage.items()} for stage in RIGHT]


def observed(values):
    return Observation(len(values), tuple(values), (), (), 0.0)


@pytest.mark.parametrize(
    ("values", "code", "ranks"),
    [
        (times(2), "microbatch-mean-unweighted", (0, 1)),
        ([{"a": None}, RIGHT[1]], "differs-from-single-process", (0,)),
        ([RIGHT[0], {"b": np.array([0.0])}], "differs-from-single-process", (1,)),
        ([RIGHT[0], {"b": np.array([7.0])}], "differs-from-single-process", (1,)),
    ],
)
def test_wrong_gradients_are_diagnosed(values, code, ranks):
    rules = pipeline_gradient_mistakes([("equally", times(2))])

    diagnosis = first_diagnosis(observed(values), RIGHT, rules)

    assert (diagnosis.code, diagnosis.ranks) == (code, ranks)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([RIGHT[0], {"b": np.array([7.0])}], "do a microbatch's outputs meet the targets"),
        ([{"a": np.array([7.0, 7.0])}, RIGHT[1]], "The gradients of rank 1 are right."),
    ],
)
def test_the_place_of_wrong_gradients_is_named(values, text):
    found = first_diagnosis(observed(values), RIGHT, pipeline_gradient_mistakes([]))

    assert text in found.explanation


def test_stages_that_do_not_step_are_named():
    before = [1.0, 2.0, 3.0]

    found = first_diagnosis(observed([1.0, 2.0, 4.0]), [2.0, 2.0, 4.0], [idle_stages(before)])

    assert (found.code, found.ranks) == ("does-not-learn", (0,))  # rank 1 should not move


def test_ranks_that_go_back_in_different_orders_are_diagnosed():
    rules = pipeline_gradient_mistakes([], [[1, 0], [], [0, 1]])  # rank 1 is frozen

    diagnosis = first_diagnosis(observed(times(3)), RIGHT, rules)

    assert (diagnosis.code, diagnosis.ranks) == ("microbatch-order", (0, 2))


@pytest.mark.parametrize(
    ("orders", "code"),
    [
        ([["forward"] * 2 + ["backward"] * 2] * 2, "not-1f1b"),
        ([["forward", "backward"] * 2] * 2, "not-1f1b"),
        ([["forward", "forward", "backward", "backward"], ["forward", "backward"] * 2], None),
    ],
)
def test_other_orders_than_1f1b_are_diagnosed(orders, code):
    diagnosis = diagnose_1f1b(orders, 2)

    assert (diagnosis and diagnosis.code) == code


@pytest.mark.parametrize(
    ("alive", "graphs", "ranks"),
    [([2, 1], [3, 2], None), ([3, 1], [3, 2], (0,)), ([2, 1], [4, 3], (0, 1))],
)
def test_microbatches_that_are_kept_are_diagnosed(alive, graphs, ranks):
    seen = [{"alive": [a], "graphs": [g]} for a, g in zip(alive, graphs, strict=True)]

    diagnosis = too_many_alive(seen)

    assert (diagnosis and diagnosis.ranks) == ranks


@pytest.mark.parametrize(
    ("losses", "code", "ranks"),
    [
        ([0.0, None, 2.0], "loss-is-local", (0, 1)),
        ([2.5] * 3, "microbatch-mean-unweighted", (0, 1, 2)),
        ([5.0] * 3, "microbatch-mean-unweighted", (0, 1, 2)),
        ([7.0] * 3, "differs-from-single-process", (0, 1, 2)),
    ],
)
def test_wrong_losses_are_diagnosed(losses, code, ranks):
    rules = pipeline_loss_mistakes(equally=2.5, summed=5.0)

    diagnosis = first_diagnosis(observed(losses), [2.0] * 3, rules)

    assert (diagnosis.code, diagnosis.ranks) == (code, ranks)


def test_all_forwards_before_the_first_backward_are_in_order():
    twice = ["forward", "forward", "forward", "backward", "forward", "backward"]

    assert diagnose_order([["forward", "forward", "backward", "backward"], twice], 2) is None


@pytest.mark.parametrize("order", [["forward", "backward"] * 2, ["forward", "backward"], []])
def test_a_backward_before_the_last_forward_is_named(order):
    right = ["forward", "forward", "backward", "backward"]

    diagnosis = diagnose_order([right, order], 2)

    assert (diagnosis.code, diagnosis.ranks) == ("microbatch-order", (1,))


def stopped(*calls):
    """Return a run that deadlocks, each rank in one collective, reported for rank 0."""
    events = tuple(Event(r, "enter", 0, 0.0, 1, collective=call) for r, call in enumerate(calls))
    failure = Failure("deadlock", Diagnosis("deadlock-order-differs", (0, 1), "The ranks stop."))
    return Observation(
        len(calls), (None, None), events, (), 0.0, replace(failure, collective=calls[0])
    )


def call(op, size, label):
    return Collective(op, "w", (0, 1), shapes=((size,),), label=label)


@pytest.mark.parametrize(
    ("other", "code"), [("all_reduce", "shape-mismatch"), ("broadcast", "deadlock-order-differs")]
)
def test_a_sum_of_the_stages_gradients_is_recognised(other, code):
    seen = stopped(call("all_reduce", 6, "0.weight.grad"), call(other, 4, None))

    diagnosis = stages_summed(seen, None)

    assert diagnosis.code == code
    assert "The ranks stop. Each stage has its own parameters" in diagnosis.explanation


def test_a_sum_of_losses_is_not_a_sum_of_gradients():
    seen = stopped(call("all_reduce", 1, None), call("broadcast", 1, None))

    assert stages_summed(seen, None) is None
