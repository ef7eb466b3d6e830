"""Values that a submission returns: usable ones are converted, the others named by type."""

import functools
import inspect
import sys

import numpy as np
import pytest
import torch

from gradsync.ranks.failures.exceptions import Raised, raised
from support.probes.evaluation import numbers
from support.probes.returned import (
    MANY,
    WrongReturn,
    call_with_line,
    described,
    float_returned,
    items_of,
    loaders_of,
    number_of,
    number_or_nan,
    numbers_of,
    tensor_returned,
)
from support.probes.sampling import indices_of, length_of
from support.probes.training import rows_of


@pytest.mark.parametrize("value", [1, 1.0, True, np.float32(1), torch.tensor(1.0), torch.ones(1)])
def test_a_number_may_have_any_type_of_a_number(value):
    assert number_of(value, "the loss") == 1.0


@pytest.mark.parametrize("value", [None, "1", b"1", [1.0], torch.ones(2), {}, 1j])
def test_a_value_that_is_not_a_number_raises_an_error(value):
    with pytest.raises(WrongReturn, match=r"the loss is .*\. It must be a number\."):
        number_of(value, "the loss")


def test_more_keys_than_asked_for_are_left_out():
    assert numbers_of({"a": 1, "b": 2, "name": "x"}, ("a", "b"), "it") == {"a": 1.0, "b": 2.0}


def test_if_a_key_is_missing_the_existing_keys_are_returned():
    assert set(numbers_of({"a": 1, "name": "x"}, ("a", "b"), "it")) == {"a", "name"}


def test_none_has_no_numbers_and_no_entries():
    assert numbers(None) == {}
    assert rows_of(None) == []
    assert rows_of([None]) == [{}]


@pytest.mark.parametrize("result", [(1.0, 0.5, 4), 1.0, "loss 1.0"])
def test_an_evaluation_that_does_not_return_a_dict_is_reported(result):
    with pytest.raises(WrongReturn, match="It must be a dict with loss, accuracy and samples"):
        numbers(result)


@pytest.mark.parametrize("history", [{"train_loss": [1.0]}, 1.0, iter([])])
def test_a_history_that_is_not_a_list_is_reported(history):
    with pytest.raises(WrongReturn, match="It must return a list with a dict for each epoch"):
        rows_of(history)


@pytest.mark.parametrize("history", [[(0, 1.0, 1.0, 0.5)], ([], "model")])
def test_an_entry_of_a_history_that_is_not_a_dict_is_reported(history):
    with pytest.raises(WrongReturn, match="an entry of the history"):
        rows_of(history)


class Returning:
    """A sampler whose special methods return the given value."""

    def __init__(self, value):
        self.value = value

    def __iter__(self):
        return self.value

    def __len__(self):
        return self.value


@pytest.mark.parametrize("value", [None, [0, 1], range(2)])
def test_a_sampler_that_does_not_return_an_iterator_is_reported(value):
    with pytest.raises(WrongReturn, match="It must return an iterator"):
        indices_of(Returning(value))


@pytest.mark.parametrize("index", [1.0, [0, 1], None, "1"])
def test_a_sampler_that_does_not_yield_integers_is_reported(index):
    with pytest.raises(WrongReturn, match="It must yield integers"):
        indices_of(Returning(iter([index])))


def test_an_endless_pass_is_reported():
    assert len(indices_of(Returning(iter(range(MANY))))) == MANY
    with pytest.raises(WrongReturn, match=r"does not end: .* first an int, 0, an int, 0"):
        indices_of(Returning(iter(int, 1)))


@pytest.mark.parametrize("value", [None, "2", [2.0], torch.ones(3), object()])
def test_a_value_that_is_not_a_number_can_become_nan(value):
    assert number_or_nan(value) != number_or_nan(value)


def test_a_value_that_is_not_a_tensor_is_reported():
    with pytest.raises(WrongReturn, match=r"it returns a tuple\. It must return a tensor"):
        tensor_returned((torch.ones(1),), "it")


def test_all_items_of_a_finite_iterator_are_returned():
    assert items_of(iter(range(3)), "it") == [0, 1, 2]


def test_a_length_that_is_not_an_int_is_reported():
    assert length_of(Returning(3)) == 3
    with pytest.raises(WrongReturn, match=r"returns a float, 3\.0\. It must be an int"):
        length_of(Returning(3.0))


def test_long_values_are_described_by_their_type():
    assert described("x" * 100) == "a str"
    assert described([1]) == "a list"
    assert described(torch.ones(1)) == "a Tensor"


def test_a_wrong_type_fails_the_test_instead_of_raising():
    row = {"type": "WrongReturn", "message": "evaluate returns a tuple"}

    failure = raised(Raised.read(row), (1, 2))

    assert (failure.status, failure.diagnosis.code) == ("failed", "wrong-signature")
    assert failure.diagnosis.explanation == "Ranks 1 and 2: evaluate returns a tuple."


def test_only_a_float_is_a_float():
    assert float_returned(np.float64(1), "f") == 1.0
    with pytest.raises(
        WrongReturn, match=r"f returns a Tensor\. It must return a float\. Call `.item\(\)`"
    ):
        float_returned(torch.tensor(1.0), "f")


def test_none_may_be_a_forgotten_return():
    for use in (loaders_of, lambda value: float_returned(value, "f")):
        with pytest.raises(WrongReturn, match=r"returns None\. .*Did you forget `return`\?$"):
            use(None)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@decorated
def halved(number):
    if number < 0:
        return None
    return number / 2


def test_the_line_that_returns_is_found_below_decorators():
    before = sys.getprofile()
    first = inspect.unwrap(halved).__code__.co_firstlineno  # the decorator's line

    assert call_with_line(halved, 3) == (1.5, f"test_returned.py:{first + 4}")
    assert call_with_line(halved, -1) == (None, f"test_returned.py:{first + 3}")
    assert call_with_line(len, [1]) == (1, "")
    assert sys.getprofile() is before
