"""Mistakes in how gradients are reduced, recognised by the ranks' calls and their gradients."""

import pytest

from gradsync.records import Collective, Event, Observation
from gradsync.testing.rules import first_diagnosis
from support.rules.gradients import gradient_mistakes
from support.rules.rounding import without_fractions

LOCAL = [{"weight": 2.0, "bias": 1.0}, {"weight": 7.0, "bias": 4.0}]
MEAN = {"weight": 4.5, "bias": 2.5}


def diagnose(values, *calls, local=LOCAL, mean=MEAN):
    """Diagnose two ranks that both make these calls."""
    events = tuple(
        Event(rank, "enter", number, 0.0, 1, collective=call)
        for rank in range(2)
        for number, call in enumerate(calls)
    )
    seen = Observation(2, tuple(values), events, ("", ""), 0.1)
    return first_diagnosis(seen, [mean] * 2, gradient_mistakes(local))


def reduction(label=None, op="all_reduce", **more):
    where = f"trainer.py:{3 if label == 'weight' else 9}"
    return Collective(op, "world", (0, 1), ((1,),), "float32", label=label, where=where, **more)


def test_parameters_in_place_of_gradients_are_reported_with_the_first_line():
    found = diagnose(LOCAL, reduction("weight"), reduction("bias"))

    assert (found.code, found.where) == ("gradients-not-synchronised", "trainer.py:3")
    assert "is called with the parameter weight, not with its gradient" in found.explanation


def test_parameters_beside_gradients_are_not_the_mistake():
    summed = {"weight": 9.0, "bias": 5.0}

    assert diagnose([summed] * 2, reduction("weight"), reduction("weight.grad")).code == (
        "sum-not-mean"
    )


@pytest.mark.parametrize(("count", "line"), [(2, "trainer.py:9"), (1, None)])
def test_a_sum_in_other_tensors_is_reported_if_it_has_all_elements(count, line):
    found = diagnose(LOCAL, *[reduction()] * count)

    assert (found.code, found.where) == ("gradients-not-synchronised", line)
    assert ("is in other tensors" in found.explanation) == (line is not None)


def test_reduce_is_named_only_if_it_was_called():
    alone = [MEAN, LOCAL[1]]

    by_reduce = diagnose(alone, reduction("weight.grad", "reduce", root=0))
    otherwise = diagnose(alone, reduction("weight.grad"))

    assert by_reduce.code == otherwise.code == "only-one-rank-has-it"
    assert "`reduce` delivers the sum to a single rank" in by_reduce.explanation
    assert "`reduce`" not in otherwise.explanation


@pytest.mark.parametrize(
    ("operation", "value", "said"),
    [
        ("MAX", 3.5, "is the largest of the ranks' elements, divided by 2"),
        ("MIN", 1.0, "is the smallest of the ranks' elements, divided by 2"),
        ("PRODUCT", 14.0, "is the product of the ranks' elements."),
        ("SUM", 3.5, "0.7778 times the mean"),  # a single number may be so by chance
    ],
)
def test_another_operation_on_a_single_number_needs_the_call(operation, value, said):
    local = [{"weight": 2.0}, {"weight": 7.0}]
    call = reduction("weight.grad", reduce=operation)

    found = diagnose([{"weight": value}] * 2, call, local=local, mean={"weight": 4.5})

    assert said in found.explanation


@pytest.mark.parametrize("values", [{"weight": 4.0, "bias": 2.0}, {"weight": -5.0, "bias": 2.0}])
def test_a_mean_without_its_fraction_is_reported(values):
    mean = {"weight": 4.5 if values["weight"] > 0 else -4.5, "bias": 2.5}

    found = diagnose([values] * 2, reduction("weight.grad"), mean=mean)

    assert found.code == "differs-from-single-process"
    assert "rounded to a whole number" in found.explanation


def test_gradients_that_are_all_zero_are_not_called_rounded():
    small = {"weight": 0.2, "bias": 0.1}
    seen = Observation(1, ({"weight": 0.0, "bias": 0.0},), (), ("",), 0.1)

    assert without_fractions("Gradients")(seen, [small]) is None
