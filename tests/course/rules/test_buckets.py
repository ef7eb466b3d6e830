"""The rules on gradients averaged in buckets."""

import numpy as np
import pytest

from gradsync.records import Collective, Event, Observation
from support.rules.buckets import averaged_elements, in_messages, some_undivided

MEAN = {"weight": np.array([1.0, 2.0]), "bias": np.array([3.0])}
SUMMED = {**MEAN, "bias": 2 * MEAN["bias"]}


def observed(values, by_rank=((), ())):
    events = [
        Event(rank, "enter", number, 0.0, 1, collective=collective)
        for rank, calls in enumerate(by_rank)
        for number, collective in enumerate(calls)
    ]
    return Observation(len(values), tuple(values), tuple(events), (), 0.0)


def call(op, size, peer=None):
    return Collective(op, "w", (0, 1, 2), shapes=((size,),), dtype="float32", peer=peer)


def ring(rank, sizes):
    """Return the calls of a rank that sums buckets of these sizes in a ring of three ranks."""
    return [
        each
        for size in sizes
        for _ in range(4)
        for each in (
            call("send", size // 3, (rank + 1) % 3),
            call("recv", size // 3, (rank - 1) % 3),
        )
    ]


@pytest.mark.parametrize("values", [[SUMMED, SUMMED], [MEAN, SUMMED]])
def test_gradients_that_are_sums_while_others_are_means_are_named(values):
    diagnosis = some_undivided(observed(values), [MEAN, MEAN])

    wrong = tuple(rank for rank, value in enumerate(values) if value is SUMMED)
    assert (diagnosis.code, diagnosis.ranks) == ("sum-not-mean", wrong)
    assert diagnosis.explanation.startswith("The gradients of bias are exactly 2 times the mean")


@pytest.mark.parametrize(
    "value",
    [MEAN, {name: 2 * grad for name, grad in MEAN.items()}, {**MEAN, "bias": np.array([7.0])}],
)
def test_gradients_that_are_all_means_or_all_sums_are_not_mixed(value):
    assert some_undivided(observed([value, value]), [MEAN, MEAN]) is None


def test_the_elements_averaged_by_a_ring_are_computed_from_its_messages():
    seen = observed([None] * 3, [ring(rank, [90, 120]) for rank in range(3)])

    assert in_messages(seen)
    assert averaged_elements(seen) == 210


def test_the_elements_averaged_by_all_reduce_are_its_elements():
    calls = [call("all_reduce", 90), call("all_reduce", 120), call("all_reduce", 1)]
    seen = observed([None] * 3, [calls] * 3)

    assert not in_messages(seen)
    assert averaged_elements(seen) == 210
