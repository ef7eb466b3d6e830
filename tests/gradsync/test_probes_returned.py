"""What a submission returned, as probes report it."""

import itertools

import numpy as np
import pytest
import torch

from gradsync.probes.returned import items_of, number_or_nan, numbers_of, tensor_of


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), torch.tensor(2), torch.tensor([2.0])])
def test_whatever_stands_for_one_number_is_one(value):
    assert numbers_of({"loss": value}, ["loss"], "evaluate returns") == {"loss": 2.0}


@pytest.mark.parametrize("value", [None, "2", [2.0], torch.ones(3), object()])
def test_anything_else_is_none(value):
    assert number_or_nan(value) != number_or_nan(value)


@pytest.mark.parametrize("value", [None, "high", [2.0], object()])
def test_an_entry_of_another_type_is_named(value):
    with pytest.raises(TypeError, match=r"evaluate returns .* as 'loss': a number is expected"):
        numbers_of({"loss": value}, ["loss"], "evaluate returns")


def test_further_entries_are_left_out_whatever_they_are():
    assert numbers_of({"loss": 1.0, "name": "val"}, ["loss"], "evaluate returns") == {"loss": 1.0}


@pytest.mark.parametrize("value", [None, 3.0, [1.0]])
def test_what_is_no_dict_is_named(value):
    with pytest.raises(TypeError, match="a dict with loss is expected"):
        numbers_of(value, ["loss"], "evaluate returns")


def test_what_is_no_tensor_is_named():
    with pytest.raises(TypeError, match="returns a value of type tuple: a tensor is expected"):
        tensor_of((torch.ones(1), None), "forward returns")


def test_an_iterator_without_end_is_named():
    with pytest.raises(TypeError, match="a pass does not end"):
        items_of(itertools.repeat(0), "a pass")
