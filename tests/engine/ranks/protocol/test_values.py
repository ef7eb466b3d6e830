"""Values from a rank: encoded ones are decoded, and invalid ones are refused."""

import json
import math
import time
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradsync.ranks.protocol.values import (
    ARRAY_DTYPES,
    MAX_DEPTH,
    MAX_ITEMS,
    TENSOR_DTYPES,
    decode,
    encode,
)
from gradsync.ranks.protocol.wire import WireError

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
hashables = scalars | st.lists(scalars, max_size=3).map(tuple) | st.frozensets(scalars, max_size=3)
plain = st.recursive(
    hashables | st.sets(hashables, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(hashables, inner, max_size=4)
    ),
    max_leaves=10,
)
json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["tensor", "array", "shape", "bytes", "dict", "list", "set", "x"]),
            inner,
        )
        | st.fixed_dictionaries(
            {"tensor": st.sampled_from(sorted(TENSOR_DTYPES)), "shape": st.lists(st.integers())}
        )
        | st.fixed_dictionaries(
            {"array": st.sampled_from(sorted(ARRAY_DTYPES)), "shape": st.lists(st.integers())}
        )
    ),
)


def through_json(value):
    tree, pieces = encode(value)
    return decode(json.loads(json.dumps(tree)), bytearray(b"".join(pieces)))


@given(plain)
def test_plain_data_returns_as_it_was(value):
    assert through_json(value) == value


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e308, -0.0, 2**200, "\ud800", True])
def test_unusual_scalars_return_as_they_were(value):
    returned = through_json(value)

    assert (type(returned), str(returned)) == (type(value), str(value))


def test_a_nan_returns_as_one():
    assert math.isnan(through_json(math.nan))


@pytest.mark.parametrize("dtype", sorted(TENSOR_DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 2), (2, 0, 3)])
def test_a_tensor_returns_as_it_was(dtype, shape):
    tensor = torch.zeros(shape, dtype=getattr(torch, dtype))

    returned = through_json(tensor)

    assert returned.dtype == tensor.dtype
    assert torch.equal(returned, tensor)


@pytest.mark.parametrize("dtype", sorted(ARRAY_DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_an_array_returns_as_it_was(dtype, shape):
    array = np.ones(shape, dtype=dtype)

    np.testing.assert_array_equal(through_json(array), array, strict=True)


@pytest.mark.parametrize(
    "value", [np.float32(1.5), np.int64(3), np.bool_(True), np.float64(2.5)], ids=repr
)
def test_a_numpy_scalar_returns_as_a_number(value):
    assert through_json(value) == value.item()
    assert type(through_json(value)) is type(value.item())


def test_a_conjugated_view_returns_with_its_values():
    tensor = torch.tensor([1 + 2j]).conj()

    assert torch.equal(through_json(tensor), torch.tensor([1 - 2j]))


@pytest.mark.parametrize(
    "view", [torch.arange(10)[1::5][:1], torch.arange(12).view(3, 4).t()[::2], torch.arange(3)[:0]]
)
def test_a_view_with_unusual_strides_returns_with_its_values(view):
    assert torch.equal(through_json(view), view)


def test_large_tensors_after_an_odd_number_of_bytes_return_with_their_values():
    values = [b"odd", torch.arange(2.0**15), torch.arange(2**15).view(torch.complex64)[::3]]

    _, floats, complexes = through_json(values)

    assert torch.equal(floats, values[1])
    assert torch.equal(complexes, values[2])


def test_large_arrays_in_any_memory_order_return_with_their_values_and_can_be_changed():
    values = [
        np.arange(2.0**16).reshape(2**8, 2**8).T,
        np.ones((300, 300), dtype=">f4"),
        b"x" * 2**17,
    ]

    transposed, big_endian, data = through_json(values)
    transposed += 1

    np.testing.assert_array_equal(transposed, values[0] + 1, strict=True)
    np.testing.assert_array_equal(big_endian, values[1], strict=True)
    assert data == values[2]


def test_a_subclass_returns_as_its_base_type():
    class Loss(float):
        pass

    assert type(through_json([Loss(2.5)])[0]) is float


def test_a_value_nested_too_deeply_is_refused_on_the_rank():
    deep = []
    for _ in range(MAX_DEPTH):
        deep = [deep]

    with pytest.raises(TypeError, match="is nested too deeply"):
        encode(deep)


def test_a_value_nested_to_the_limit_returns():
    deep = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]

    assert through_json(deep) == deep


@pytest.mark.parametrize(
    ("tree", "body"),
    [
        ({"tensor": "float32", "shape": [2]}, b"1234567"),
        ({"tensor": "float32", "shape": [2]}, b"123456789"),
        ({"tensor": "float32", "shape": [-1]}, b"1234"),
        ({"tensor": "float32", "shape": [True]}, b"1234"),
        ({"tensor": "float32", "shape": [1.0]}, b"1234"),
        ({"tensor": "float32", "shape": "1"}, b"1234"),
        ({"tensor": "float32"}, b"1234"),
        ({"tensor": "float32", "shape": [2**40]}, b"1234"),
        ({"tensor": "float32", "shape": [2**40] * 60}, b"1234"),
        ({"tensor": "float32", "shape": [2**40, 2**40, 0]}, b""),
        ({"tensor": "float32", "shape": [1] * 65}, b"1234"),
        ({"tensor": "object", "shape": [1]}, b"1234"),
        ({"tensor": ["float32"], "shape": [1]}, b"1234"),
        ({"tensor": "bool", "shape": [1]}, b"\2"),
        ({"array": "|O", "shape": [1]}, b"12345678"),
        ({"array": "<f4,<f4", "shape": [1]}, b"12345678"),
        ({"array": "(2,3)<f4", "shape": [1]}, b"1234"),
        ({"array": "|b1", "shape": [1]}, b"\2"),
        ({"array": "<f4", "shape": [2**40, 2**40, 0]}, b""),
        ({"array": "<f4", "shape": [2**40]}, b""),
        ({"bytes": -1}, b""),
        ({"bytes": 2**40}, b""),
        ({"bytes": True}, b"1"),
        ({"list": {}}, b""),
        ({"list": [[]]}, b""),
        ({"deque": []}, b""),
        ({"dict": [[1]]}, b""),
        ({"dict": [[1, 2, 3]]}, b""),
        ({"dict": [1]}, b""),
        ({"dict": [[{"list": []}, 1]]}, b""),
        ({"set": [{"dict": []}]}, b""),
        ({}, b""),
        ([], b""),
        (1, b"left over"),
    ],
    ids=str,
)
def test_an_inconsistent_answer_is_refused(tree, body):
    with pytest.raises(WireError):
        decode(tree, body)


@given(json_trees, st.binary(max_size=64))
def test_any_answer_is_decoded_or_refused(tree, body):
    with suppress(WireError):
        decode(tree, body)


def test_an_endless_tree_is_refused():
    tree = 1
    for _ in range(900):
        tree = {"list": [tree]}

    with pytest.raises(WireError):
        decode(tree, b"")


@pytest.mark.parametrize("kind", ["set", "frozenset", "dict"])
def test_keys_with_colliding_hashes_are_refused_at_once(kind):
    keys = [number * (2**61 - 1) for number in range(50_000)]
    content = [[key, 0] for key in keys] if kind == "dict" else keys
    began = time.monotonic()

    with pytest.raises(WireError, match="colliding hashes"):
        decode({kind: content}, b"")

    assert time.monotonic() - began < 10


def test_a_set_of_many_numbers_is_accepted():
    value = set(range(-50_000, 50_000))

    assert through_json(value) == value


def test_too_many_items_are_refused_on_both_sides():
    half = [0] * (MAX_ITEMS // 2)
    tree = {"tuple": [{"list": half}, {"list": [*half, 1]}]}

    with pytest.raises(TypeError, match="more than 131,072 items: return numbers as a tensor"):
        encode((half, [*half, 1]))
    with pytest.raises(WireError, match="more than 131,072 items"):
        decode(tree, b"")


def test_a_list_with_the_maximum_of_items_returns():
    numbers = list(range(MAX_ITEMS))

    assert through_json(numbers) == numbers
