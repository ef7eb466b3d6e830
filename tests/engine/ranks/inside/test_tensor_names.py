"""The place of a call and the name of its tensor, as a rank finds them."""

import inspect
import weakref

import pytest
import torch
from torch import nn

from gradsync.ranks.inside.watch import callers


def label_of(tensor):
    return callers.caller((), "all_reduce", tensor).label


def test_the_line_of_the_call_is_named():
    line = inspect.currentframe().f_lineno + 1
    where = callers.caller((), "barrier", None).where

    assert where == f"test_tensor_names.py:{line}"


def test_only_files_under_the_roots_are_named():
    caller = callers.caller(("/submission",), "all_reduce", torch.ones(1))

    assert (caller.where, caller.label) == (None, None)
    assert caller.by_test


def test_a_parameter_is_named():
    model = nn.Sequential(nn.Linear(2, 3))

    assert label_of(model[0].weight) == "0.weight"


def test_a_label_does_not_keep_a_deleted_object_alive():
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    gone = weakref.ref(other)

    label_of(model.weight)
    del other

    assert gone() is None


def test_a_label_does_not_keep_a_replaced_parameter_alive():
    model = nn.Linear(2, 3)
    label_of(model.weight)
    gone = weakref.ref(model.weight)

    model.weight = nn.Parameter(torch.ones(3, 2))

    assert gone() is None
    assert label_of(model.weight) == "weight"


def test_a_label_does_not_change_the_result_of_locals():
    model = nn.Linear(2, 3)
    variables = locals()

    label_of(model.weight)

    assert variables["model"] is model


def test_a_gradient_is_named():
    model = nn.Linear(2, 3)
    model(torch.ones(1, 2)).sum().backward()

    assert label_of(model.bias.grad) == "bias.grad"


def test_a_buffer_is_named():
    model = nn.BatchNorm1d(3)

    assert label_of(model.running_mean) == "running_mean"


def test_a_flat_view_of_a_gradient_is_named():
    model = nn.Linear(2, 3)
    model(torch.ones(1, 2)).sum().backward()

    assert label_of(model.weight.grad.view(-1)) == "weight.grad"


def test_another_tensor_has_no_name():
    model = nn.Linear(2, 3)  # noqa: F841 - `label_of` searches it

    assert label_of(torch.ones(3)) is None


def test_an_empty_tensor_has_no_name():
    model = nn.Module()
    model.register_buffer("nothing", torch.ones(0))

    assert label_of(model.nothing) is None


@pytest.mark.filterwarnings("ignore:Lazy modules:UserWarning")
def test_unusual_tensors_in_a_model_do_no_harm():
    model = nn.Module()
    model.embedding = nn.Embedding(3, 2, sparse=True)
    model.embedding(torch.tensor([1])).sum().backward()
    model.register_buffer("sparse", torch.ones(2, 2).to_sparse())
    model.layer = nn.LazyLinear(3)

    assert label_of(torch.ones(6)) is None
