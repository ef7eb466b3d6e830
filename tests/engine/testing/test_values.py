"""Comparing values, and mistakes recognised by the values that they lead to."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsync.records import Diagnosis, Failure, Observation
from gradsync.testing.rules import first_diagnosis
from gradsync.testing.values import EXACT, close, differing_ranks
from gradsync.testing.wrong_results import differs_from_one_process, ends_with
from support.rules.broadcast import broadcast_mistakes
from support.rules.launching import address_taken, variable_not_set, without_a_group


def observed(*values, failure=None):
    return Observation(len(values), values, (), ("",) * len(values), 0.1, failure)


@pytest.mark.parametrize(
    ("value", "wanted", "same"),
    [(1.0, np.inf, False), (np.inf, 1.0, False), (np.inf, np.inf, True), (-np.inf, np.inf, False)],
)
def test_infinity_equals_only_itself(value, wanted, same):
    assert close([1.0, value], [1.0, wanted]) == same


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50), st.randoms())
def test_a_sum_in_another_order_is_the_same(numbers, random):
    numbers = np.array(numbers, dtype=np.float32)
    shuffled = numbers.copy()
    random.shuffle(shuffled)
    scale = np.abs(numbers).sum(dtype=np.float32)

    one, other = (np.array([part.sum(dtype=np.float32), scale]) for part in (numbers, shuffled))

    assert close(one, other)


@pytest.mark.parametrize("factor", [0.99, 1.01, 2.0, 0.5])
def test_a_difference_of_a_hundredth_is_noticed(factor):
    wanted = torch.rand(10) + 1

    assert not close(wanted * factor, wanted)


def test_exact_means_bit_for_bit():
    wanted = torch.ones(3)

    assert close(wanted.clone(), wanted, EXACT)
    assert not close(torch.nextafter(wanted, wanted * 2), wanted, EXACT)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (torch.ones(2), torch.ones(3)),
        (torch.ones(2, 1), torch.ones(2)),
        (None, torch.ones(1)),
        (float("nan"), 1.0),
        ("1", 1.0),
        (1, True),
        ({"a": 1.0}, {"b": 1.0}),
        ([1.0], [1.0, 1.0]),
    ],
)
def test_another_shape_or_type_is_another_value(value, wanted):
    assert not close(value, wanted)


def test_the_ranks_that_differ_are_named():
    assert differing_ranks([1.0, 2.0, 1.0, 3.0], [1.0] * 4, 64) == [1, 3]


def test_a_mistake_is_recognised_by_its_values():
    rule = ends_with([2.0, 4.0], "loss-is-local", "each rank has its own loss", "Training")

    assert rule(observed(2.0, 4.0), [3.0, 3.0]).code == "loss-is-local"
    assert rule(observed(2.0, 3.0), [3.0, 3.0]) is None
    assert rule(observed(2.0, 4.0), None) is None


def test_an_unknown_mistake_is_reported_without_the_right_value():
    diagnosis = differs_from_one_process("Training", "2 ranks")(observed(1.0, 1.0), [3.0, 3.0])

    assert diagnosis.code == "differs-from-single-process"
    assert "3" not in diagnosis.explanation


def test_the_size_of_a_difference_is_reported():
    weights = [{"fc.weight": np.array([1.0, 4.0])}] * 2
    seen = observed(*[{"fc.weight": np.array([1.0, 2.0])}] * 2)

    diagnosis = differs_from_one_process("Training", "2 ranks")(seen, weights)

    assert "On rank 0, `fc.weight` is off by up to 50 % of" in diagnosis.explanation


BEFORE = [
    {"w": torch.full((2,), float(rank)), "mean": torch.tensor([rank + 10.0])} for rank in (0, 1)
]


@pytest.mark.parametrize(
    ("after", "code"),
    [
        ([BEFORE[1], BEFORE[1]], "wrong-source"),
        ([BEFORE[0], {**BEFORE[1], "w": BEFORE[0]["w"]}], "buffers-not-broadcast"),
        ([BEFORE[0], {**BEFORE[1], "mean": BEFORE[0]["mean"]}], "models-differ"),
        (BEFORE, "models-differ"),
    ],
)
def test_each_mistake_in_broadcasting_has_its_code(after, code):
    rules = broadcast_mistakes(BEFORE, 0, ["mean"])

    assert first_diagnosis(observed(*after), [BEFORE[0]] * 2, rules).code == code


def raised(detail):
    known = Diagnosis("exception", (0,), detail, "template_trainer.py:115")
    return observed(None, failure=Failure("error", known, "ValueError", detail))


@pytest.mark.parametrize(
    ("rule", "detail", "code"),
    [
        (variable_not_set, "environment variable RANK expected, but not set", "launcher-not-read"),
        (address_taken, "port: 29500, errno: 98, Address already in use", "wrong-master"),
        (
            without_a_group("needs none", "Checkpoints"),
            "Default process group has not been initialized, please make sure ...",
            "group-not-initialised",
        ),
    ],
)
def test_an_exception_of_the_process_group_is_explained(rule, detail, code):
    diagnosis = rule(raised(detail), None)

    assert (diagnosis.code, diagnosis.ranks) == (code, (0,))
    assert "template_trainer.py:115" in diagnosis.explanation
    assert rule(raised("something else"), None) is None
    assert rule(observed(1.0), None) is None
