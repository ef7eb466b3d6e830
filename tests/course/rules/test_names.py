"""An order of calls that depends on the parameters' names."""

import pytest
import torch

from gradsync.records import Collective, Diagnosis, Event, Failure, Observation
from support.probes.names import first_numbers, model_named, name_sets
from support.rules.names import mixed_means, order_depends_on_names

OWN = [[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]  # (rank, tensor), before they are averaged
WANTED = [5.0, 6.0, 7.0]


def seen(*values, dtype="float32", code=None, ops=("all_gather", "all_gather")):
    calls = tuple(
        Event(rank, "enter", 0, 0.0, 1, collective=Collective(op, "0", (0, 1), dtype=dtype))
        for rank, op in enumerate(ops)
    )
    failure = code and Failure("deadlock", Diagnosis(code, (0,), "they differ", "trainer.py:7"))
    return Observation(2, values, events=calls, output=("", ""), seconds=0.0, failure=failure)


def found(observation):
    return order_depends_on_names(observation, WANTED, mixed_means(OWN), "averaged", "Gradients")


def test_ranks_that_agree_on_the_order_are_right():
    assert found(seen(WANTED, WANTED)) is None
    assert found(seen([5.000001, 6.0, 7.0], WANTED)) is None  # divided before the sum


@pytest.mark.parametrize(
    "observation",
    [
        seen([5.5, 6.5, 6.0], [6.0, 5.5, 6.5]),
        seen(code="deadlock-order-differs"),
        seen(code="rank-crashed"),  # gloo aborts a rank that receives a tensor of another size
    ],
)
def test_a_different_order_is_reported(observation):
    assert found(observation).code == "deadlock-order-differs"


@pytest.mark.parametrize(
    "numbers", [OWN, ([0.0, 6.0, 7.0], WANTED), ([10.0, 12.0, 14.0], [12.0, 10.0, 14.0])]
)
def test_numbers_that_no_order_leads_to_are_not_judged(numbers):
    assert found(seen(*numbers)) is None


def test_ranks_that_exchange_names_are_not_judged():
    assert found(seen([5.5, 6.5, 6.0], [6.0, 5.5, 6.5], dtype="uint8")) is None


@pytest.mark.parametrize(
    "observation",
    [
        seen(code="exception"),
        seen(code="deadlock-order-differs", ops=("all_gather", "barrier")),
        seen(code="deadlock-rank-missing", ops=("all_gather",)),
    ],
)
def test_another_failure_is_not_judged(observation):
    assert found(observation) is None


def test_the_names_differ_and_their_order_does_not():
    names = name_sets(3, 123)

    assert len({name for own in names for name in own}) == 21
    assert all(own == sorted(own) for own in names)


def test_the_numbers_of_a_model_are_in_the_order_of_its_names():
    model = model_named(["a", "b", "c"], 2, 20.0, buffers=True)

    assert [name for name, _ in model.named_parameters()] == ["a", "b", "c"]
    assert first_numbers([*model.parameters(), None]) == [20.0, 21.0, 22.0, None]
    assert first_numbers([*model.buffers()]) == [120.0, 121.0, 122.0]
    model(torch.tensor(7.0)).backward()
    assert first_numbers([p.grad for p in model.parameters()]) == [27.0, 28.0, 29.0]


def test_a_set_of_a_models_parameters_has_a_different_order_on_each_rank():
    models = [model_named(["a", "b", "c"], rank) for rank in range(3)]

    assert [[p[0].item() for p in set(m.parameters())] for m in models] == [
        [0.0, 1.0, 2.0],
        [1.0, 2.0, 0.0],
        [2.0, 0.0, 1.0],
    ]
