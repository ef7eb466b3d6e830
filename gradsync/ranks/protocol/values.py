"""Encode values for frames: plain data as JSON, tensors and arrays as raw bytes.

`encode` runs on a rank, `decode` on the trusted side. Decoding accepts a closed list of exact
types, and checks every shape against the bytes that arrived, so a value is safe to compare.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from gradsync.ranks.protocol.wire import WireError

if TYPE_CHECKING:
    import torch

MAX_DEPTH = 64
MAX_ITEMS = 2**17  # of all containers: comparing values is not covered by a time limit
TOO_MANY = f"more than {MAX_ITEMS:,} items: return numbers as a tensor or an array"
MAX_COLLISIONS = 64  # ordinary keys rarely share a hash; thousands that do are an attack

PLAIN = (type(None), bool, int, float, str)
TENSOR_DTYPES = {
    name: size
    for size, names in {
        1: ("bool", "uint8", "int8"),
        2: ("int16", "float16", "bfloat16"),
        4: ("int32", "float32"),
        8: ("int64", "float64", "complex64"),
        16: ("complex128",),
    }.items()
    for name in names
}
NUMBERS = "?" + np.typecodes["AllInteger"] + np.typecodes["AllFloat"]
ARRAY_DTYPES = {np.dtype(order + kind).str for order in "<>" for kind in NUMBERS}
CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


LARGE = 2**16  # bytes; so large a tensor is not copied, neither when it is sent nor on arrival


def encode(value: Any) -> tuple[Any, list[bytearray | memoryview]]:
    """Return `value` as a JSON tree and the bytes of its tensors, in pieces.

    The pieces of large tensors are views of their memory.

    Raises:
        TypeError: it contains something that is not plain data, or too many items; the message
            names the place.
    """
    blobs = _Blobs()
    return _encode(value, blobs, "the returned value", MAX_DEPTH), blobs.pieces


class _Blobs:
    """The bytes of tensors, and the number of items in containers so far."""

    def __init__(self) -> None:
        self.items = 0
        self.pieces: list[bytearray | memoryview] = []

    def add(self, data: memoryview) -> None:
        """Append bytes; a small piece is added to the previous one, so that few are sent."""
        if len(data) >= LARGE:
            self.pieces.append(data)
        elif self.pieces and isinstance(self.pieces[-1], bytearray):
            self.pieces[-1] += data
        else:
            self.pieces.append(bytearray(data))


def _encode(value: Any, blobs: _Blobs, path: str, depth: int) -> Any:
    import torch

    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value.detach(), blobs, path)
    if isinstance(value, (np.ndarray, np.generic)):
        return _encode_array(np.asarray(value), blobs, path, scalar=isinstance(value, np.generic))
    if isinstance(value, (bytes, bytearray)):
        blobs.add(memoryview(value))
        return {"bytes": len(value)}
    if isinstance(value, (dict, *CONTAINERS.values())):
        if depth == 0:
            raise TypeError(
                f"{path} is nested too deeply: a rank can return at most {MAX_DEPTH} levels"
            )
        return _encode_container(value, blobs, path, depth - 1)
    for plain in PLAIN[1:]:  # a subclass is sent as its base type
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(
        f"{path} is of type {type(value).__name__}: a rank can return numbers, strings, tensors, "
        "arrays, and lists, tuples, sets and dicts of them"
    )


def _encode_container(value: Any, blobs: _Blobs, path: str, depth: int) -> Any:
    blobs.items += len(value)
    if blobs.items > MAX_ITEMS:
        raise TypeError(f"the returned value has {TOO_MANY}")
    if isinstance(value, dict):
        return {
            "dict": [
                [
                    _encode(k, blobs, f"a key of {path}", depth),
                    _encode(v, blobs, f"{path}[{k!r}]", depth),
                ]
                for k, v in value.items()
            ]
        }
    name = next(name for name, kind in CONTAINERS.items() if isinstance(value, kind))
    return {
        name: [
            item if type(item) in PLAIN else _encode(item, blobs, f"{path}[{i}]", depth)
            for i, item in enumerate(value)
        ]
    }


def _encode_tensor(tensor: torch.Tensor, blobs: _Blobs, path: str) -> Any:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in TENSOR_DTYPES or tensor.layout != torch.strided:
        raise TypeError(f"{path} is a {tensor.layout} tensor of {dtype}, which a rank can't return")
    dense = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    if dense.numel() < 2:  # such a tensor is contiguous whatever its stride, and view() then fails
        dense = dense.clone(memory_format=torch.contiguous_format)
    blobs.add(dense.reshape(-1).view(torch.uint8).numpy().data)
    return {"tensor": dtype, "shape": list(tensor.shape)}


def _encode_array(array: np.ndarray[Any, Any], blobs: _Blobs, path: str, *, scalar: bool) -> Any:
    if array.dtype.str not in ARRAY_DTYPES:
        raise TypeError(
            f"{path} is an array of {array.dtype}: a rank can return arrays of numbers only"
        )
    if scalar and type(array.item()) in PLAIN:
        return array.item()
    blobs.add(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {"array": array.dtype.str, "shape": list(array.shape)}


def decode(tree: Any, body: bytes | memoryview) -> Any:
    """Return the value that `encode` turned into `tree` and `body`.

    Raises:
        WireError: it is not an output of `encode`.
    """
    reader = _Reader(memoryview(body))
    value = _decode(tree, reader, MAX_DEPTH)
    if reader.rest:
        raise WireError(f"its answer has {len(reader.rest):,} bytes that belong to no tensor")
    return value


class _Reader:
    def __init__(self, body: memoryview) -> None:
        self.rest = body
        self._items = 0

    def count(self, items: int) -> None:
        self._items += items
        if self._items > MAX_ITEMS:
            raise WireError(f"its answer has {TOO_MANY}")

    def take(self, size: int, alignment: int = 1) -> bytearray | memoryview:
        """Return the next bytes: a copy, or a view if they are many and at an aligned address."""
        if size > len(self.rest):
            raise WireError("its answer has fewer bytes than its tensors need")
        taken, self.rest = self.rest[:size], self.rest[size:]
        if size < LARGE or taken.readonly or _address(taken) % alignment:
            return bytearray(taken)
        return taken


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)


def _decode(tree: Any, reader: _Reader, depth: int) -> Any:
    if type(tree) in PLAIN:
        return tree
    if type(tree) is not dict or not tree:
        raise WireError("its answer is not plain data")
    kind, content = next(iter(tree.items()))
    if kind == "tensor":
        return _decode_tensor(content, _shape(tree), reader)
    if kind == "array":
        return _decode_array(content, _shape(tree), reader)
    if kind == "bytes":
        return bytes(reader.take(_size(content)))
    if type(content) is not list or depth == 0:
        raise WireError("its answer is not plain data")
    reader.count(len(content))
    return _decode_container(kind, content, reader, depth - 1)


def _decode_container(kind: str, content: list[Any], reader: _Reader, depth: int) -> Any:
    try:
        if kind == "dict":
            pairs = [
                (_decode(key, reader, depth), _decode(item, reader, depth)) for key, item in content
            ]
            _refuse_collisions(key for key, _ in pairs)
            return dict(pairs)
        items = [_decode(item, reader, depth) for item in content]
        if kind in ("set", "frozenset"):
            _refuse_collisions(items)
        return CONTAINERS[kind](items)
    except (KeyError, TypeError, ValueError):  # an unknown kind, not a pair, an unhashable key
        raise WireError("its answer is not plain data") from None


def _refuse_collisions(keys: Iterable[Any]) -> None:
    """Refuse keys made to have the same hash: a dict of them would take hours to build."""
    seen = Counter(str(hash(key)) for key in keys)  # the hash of a string can't be predicted
    if seen and max(seen.values()) > MAX_COLLISIONS:
        raise WireError("its answer contains keys with colliding hashes")


def _decode_tensor(dtype: Any, shape: list[int], reader: _Reader) -> torch.Tensor:
    import torch

    if type(dtype) is not str or dtype not in TENSOR_DTYPES:
        raise WireError("its answer contains a tensor of an unknown dtype")
    size = TENSOR_DTYPES[dtype]
    data = reader.take(math.prod(shape) * size, size)
    if dtype == "bool":
        _check_bools(data)
    kind = getattr(torch, dtype)
    try:
        if not data:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(data, dtype=kind).reshape(shape)
    except RuntimeError:  # one dimension is 0, and the product of the others overflows
        raise WireError("its answer contains a tensor with an impossible shape") from None


def _decode_array(dtype: Any, shape: list[int], reader: _Reader) -> np.ndarray[Any, Any]:
    if type(dtype) is not str or dtype not in ARRAY_DTYPES:
        raise WireError("its answer contains an array of an unknown dtype")
    kind = np.dtype(dtype)
    data = reader.take(math.prod(shape) * kind.itemsize, kind.alignment)
    if kind.kind == "b":
        _check_bools(data)
    try:
        return np.frombuffer(data, dtype=kind).reshape(shape)
    except ValueError:  # too many dimensions for NumPy, or their product overflows, as above
        raise WireError("its answer contains an array with an impossible shape") from None


def _check_bools(data: bytearray | memoryview) -> None:
    if bytes(data).translate(None, b"\0\1"):
        raise WireError("its answer contains a bool that is neither true nor false")


def _shape(tree: dict[str, Any]) -> list[int]:
    shape = tree.get("shape")
    if type(shape) is not list or len(shape) > MAX_DEPTH:
        raise WireError("its answer contains a tensor without a shape")
    return [_size(side) for side in shape]


def _size(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= 2**40:
        raise WireError("its answer contains an invalid size")
    return number
