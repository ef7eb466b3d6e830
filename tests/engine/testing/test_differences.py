"""How values differ, if no rule recognises the mistake."""

import numpy as np
import pytest
import torch

from gradsync.testing.differences import describe_difference

RIGHT = {"weight": np.array([[1.0, -4.0]]), "bias": np.array([1.0, 2.0])}


def reported(value, wanted=RIGHT):
    return describe_difference([value], [wanted])


def test_right_values_have_no_differences():
    assert reported(dict(RIGHT)) == ""


@pytest.mark.parametrize(
    ("bias", "text"),
    [
        (np.array([1.0, 1.0]), "`bias` differs by up to 50 % of the largest expected element"),
        (
            torch.tensor([1.0, 202.0]),
            "`bias` differs by up to 100 times the largest expected element",
        ),
        (
            np.array([1e30, 2.0]),
            "`bias` differs by more than 1000 times the largest expected element",
        ),
        (np.ones(3), "`bias` has shape [3], not [2]"),
        (np.array([np.nan, 2.0]), "`bias` contains NaN or infinity"),
        (np.array([1.0, 2.008]), "`bias` differs by up to 0.4 % of the largest expected element"),
        (None, "`bias` is None"),
        ("1, 2", "`bias` is a str"),
    ],
)
def test_the_name_and_the_kind_of_difference_are_reported(bias, text):
    assert reported({**RIGHT, "bias": bias}) == f". On rank 0, {text}"


def test_a_list_of_a_different_length_is_reported():
    assert reported([1.0, 2.0], [1.0]) == ". On rank 0, the value has length 2, not 1"


def test_a_number_in_place_of_nan_is_reported():
    nan = np.array([np.nan, 1.0])

    assert (
        reported({"bias": np.ones(2)}, {"bias": nan})
        == ". On rank 0, `bias` should contain NaN or infinity, but does not"
    )


def test_nonzero_values_in_place_of_zeros_are_reported():
    assert reported(np.ones(2), np.zeros(2)) == ". On rank 0, the value is not zero"


def test_a_missing_name_is_reported():
    assert reported({"weight": RIGHT["weight"]}) == ". On rank 0, `bias` is missing"


def test_only_some_of_many_names_are_reported():
    wanted = {name: np.ones(2) for name in "abcde"}

    text = reported({name: np.zeros(2) for name in "abcde"}, wanted)

    assert text.count("differs by") == 3
    assert text.endswith("; 2 more differ")


def test_the_largest_difference_in_a_list_is_reported():
    text = reported([np.ones(2), np.full(2, 3.0)], [np.full(2, 2.0), np.ones(2)])

    assert text == ". On rank 0, the value differs by up to 2 times the largest expected element"


def test_a_description_is_not_quoted():
    text = reported({"parameter 0": np.zeros(2)}, {"parameter 0": np.ones(2)})

    assert text.startswith(". On rank 0, parameter 0 differs by")


def test_ranks_with_the_same_wrong_value_are_reported():
    wrong = {**RIGHT, "bias": np.zeros(2)}
    other = {**RIGHT, "bias": np.ones(2)}

    text = describe_difference([RIGHT, wrong, wrong, other], [RIGHT] * 4)

    assert text.startswith(". On rank 1, `bias` differs by up to 1 times")
    assert text.endswith(". The values on rank 2 equal those on rank 1")


def test_the_error_of_a_single_number_is_not_reported():
    assert reported(1.25, 1.0) == ""
    assert reported({"loss": 1.25}, {"loss": 1.0}) == ". On rank 0, `loss` has a wrong value"
