"""Pickling a function, its module's helpers, and tensors for a rank."""

import functools
import pickle
import threading
from types import CodeType

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist
from cloudpickle import cloudpickle as internals
from torch import nn

from gradsync.ranks.protocol.pickles import _named_submodules, pack

DTYPES = [torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex64]


def helper():
    return "helped"


def probe():
    return helper()


def roundtrip(inputs):
    return pickle.loads(pack(probe, inputs))[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_tensors_arrive_unchanged(dtype, shape):
    tensor = torch.arange(6).to(dtype)[: torch.Size(shape).numel()].reshape(shape)

    arrived = roundtrip({"tensor": tensor})["tensor"]

    assert arrived.dtype == dtype
    assert arrived.shape == tensor.shape
    assert torch.equal(arrived, tensor)


def test_a_view_keeps_its_strides():
    whole = torch.arange(12.0).reshape(3, 4)

    arrived = roundtrip({"view": whole.t()[1:]})["view"]

    assert torch.equal(arrived, whole.t()[1:])
    assert arrived.stride() == whole.t()[1:].stride()


def test_memory_of_a_tensor_can_grow():
    arrived = roundtrip({"tensor": torch.ones(2)})["tensor"]

    assert arrived.resize_(1000).numel() == 1000


def test_tensors_that_share_memory_still_share_it():
    tensor = torch.zeros(4)

    arrived = roundtrip({"whole": tensor, "part": tensor[1:]})
    arrived["part"].fill_(1)

    assert arrived["whole"].tolist() == [0, 1, 1, 1]


def test_a_model_keeps_its_tied_parameters():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)

    arrived = roundtrip({"model": model})["model"]

    assert arrived[1].weight is arrived[0].weight
    assert isinstance(arrived[0].weight, nn.Parameter)
    assert not arrived[0].bias.requires_grad
    assert torch.equal(arrived[1].bias, model[1].bias)


def test_tensors_without_ordinary_memory_are_pickled_by_torch():
    arrived = roundtrip({"meta": torch.empty(3, device="meta"), "sparse": torch.eye(3).to_sparse()})

    assert arrived["meta"].device.type == "meta"
    assert torch.equal(arrived["sparse"].to_dense(), torch.eye(3))


@pytest.mark.parametrize("function", [probe, functools.partial(probe), lambda: probe() + ""])
def test_helpers_of_the_functions_module_are_pickled(function):
    data = pack(function, {})

    assert b"helped" in data  # the code itself, not a module's name
    assert pickle.loads(data)[0]() == "helped"


def test_nothing_stays_registered_even_after_an_error():
    pack(probe, {})
    with pytest.raises(TypeError):
        pack(probe, {"lock": threading.Lock()})

    assert __name__ not in cloudpickle.list_registry_pickle_by_value()
    assert internals._find_imported_submodules is not _named_submodules


def test_the_same_submodules_are_found_as_by_cloudpickle():
    def function():
        torch.nn.functional.relu(dist.missing.utils, torch.utils.data.distributed, np.linalg)

    ours, theirs = (
        {each.__name__ for each in search(function.__code__, [torch, np, dist, torch.nn, "x"])}
        for search in (_named_submodules, internals._find_imported_submodules)
    )

    assert ours == theirs > {"torch.nn.functional", "torch.utils.data.distributed"}


def test_a_function_keeps_the_name_of_its_file(monkeypatch):
    def function():
        def inner():
            pass

        return inner

    reduce_code = cloudpickle.Pickler.dispatch_table[CodeType]

    def as_cloudpickle_3_1_3_does(code):
        return reduce_code(code.replace(co_filename="<dynamic-code>"))

    monkeypatch.setitem(cloudpickle.Pickler.dispatch_table, CodeType, as_cloudpickle_3_1_3_does)
    sent, _ = pickle.loads(pack(function, {}))

    assert sent.__code__.co_filename == __file__
    assert sent().__code__.co_filename == __file__
