"""Comparing values."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsync.testing.values import EXACT, close, differing_ranks


@pytest.mark.parametrize(
    ("value", "wanted", "same"),
    [(1.0, np.inf, False), (np.inf, 1.0, False), (np.inf, np.inf, True), (-np.inf, np.inf, False)],
)
def test_infinity_equals_only_itself(value, wanted, same):
    assert close([1.0, value], [1.0, wanted]) == same


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=50), st.randoms())
def test_a_sum_in_a_different_order_is_the_same(numbers, random):
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
def test_a_different_shape_or_type_is_a_different_value(value, wanted):
    assert not close(value, wanted)


def test_the_ranks_that_differ_are_named():
    assert differing_ranks([1.0, 2.0, 1.0, 3.0], [1.0] * 4, 64) == [1, 3]
