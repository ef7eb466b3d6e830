"""Values as frames carry them: plain data as JSON, tensors and arrays as raw bytes.

`encode` runs on a rank, `decode` on the trusted side. Decoding knows a closed list of exact
types and checks every shape against the bytes that came, so a value is safe to compare.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gradsync.ranks.wire import WireError

if TYPE_CHECKING:
    import torch

MAX_DEPTH = 64

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
ARRAY_KINDS = "biufc"
CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any) -> tuple[Any, bytes]:
    """Return `value` as a JSON tree and the bytes of its tensors.

    Raises:
        TypeError: it holds something that is not plain data; the message says where.
    """
    blobs: list[bytes] = []
    tree = _encode(value, blobs, "the returned value")
    return tree, b"".join(blobs)


def _encode(value: Any, blobs: list[bytes], path: str) -> Any:
    import torch

    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value.detach(), blobs, path)
    if isinstance(value, np.generic):
        return _encode(value.item(), blobs, path)
    if isinstance(value, np.ndarray):
        return _encode_array(value, blobs, path)
    if isinstance(value, (bytes, bytearray)):
        blobs.append(bytes(value))
        return {"bytes": len(value)}
    if isinstance(value, dict):
        return {
            "dict": [
                [_encode(k, blobs, f"a key of {path}"), _encode(v, blobs, f"{path}[{k!r}]")]
                for k, v in value.items()
            ]
        }
    for name, container in CONTAINERS.items():
        if isinstance(value, container):
            return {name: [_encode(v, blobs, f"{path}[{i}]") for i, v in enumerate(value)]}
    for plain in (bool, int, float, str):  # a subclass travels as what it is underneath
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(
        f"{path} is a {type(value).__name__}: a rank can return numbers, strings, tensors, "
        "arrays, and lists, tuples, sets and dicts of them"
    )


def _encode_tensor(tensor: torch.Tensor, blobs: list[bytes], path: str) -> Any:
    import torch

    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in TENSOR_DTYPES or tensor.layout != torch.strided:
        raise TypeError(f"{path} is a {tensor.layout} tensor of {dtype}: no such tensor can travel")
    dense = tensor.cpu().contiguous().resolve_conj().resolve_neg()
    blobs.append(dense.reshape(-1).view(torch.uint8).numpy().tobytes())
    return {"tensor": dtype, "shape": list(tensor.shape)}


def _encode_array(array: np.ndarray[Any, Any], blobs: list[bytes], path: str) -> Any:
    if array.dtype.kind not in ARRAY_KINDS:
        raise TypeError(f"{path} is an array of {array.dtype}: only numbers can travel")
    blobs.append(np.ascontiguousarray(array).tobytes())
    return {"array": array.dtype.str, "shape": list(array.shape)}


def decode(tree: Any, body: bytes) -> Any:
    """Return the value that `encode` gave as `tree` and `body`.

    Raises:
        WireError: it is not what `encode` writes.
    """
    reader = _Reader(memoryview(body))
    value = _decode(tree, reader, MAX_DEPTH)
    if reader.rest:
        raise WireError(f"an answer has {len(reader.rest):,} bytes that belong to no tensor")
    return value


class _Reader:
    def __init__(self, body: memoryview) -> None:
        self.rest = body

    def take(self, size: int) -> bytearray:
        if size > len(self.rest):
            raise WireError("an answer's tensors are longer than the bytes that came")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return bytearray(taken)


def _decode(tree: Any, reader: _Reader, depth: int) -> Any:
    if tree is None or type(tree) in (bool, int, float, str):
        return tree
    if depth == 0 or type(tree) is not dict or not tree:
        raise WireError("an answer is not plain data")
    kind, content = next(iter(tree.items()))
    if kind == "tensor":
        return _decode_tensor(content, _shape(tree), reader)
    if kind == "array":
        return _decode_array(content, _shape(tree), reader)
    if kind == "bytes":
        return bytes(reader.take(_size(content)))
    if type(content) is not list:
        raise WireError("an answer is not plain data")
    return _decode_container(kind, content, reader, depth - 1)


def _decode_container(kind: str, content: list[Any], reader: _Reader, depth: int) -> Any:
    try:
        if kind == "dict":
            return {
                _decode(key, reader, depth): _decode(value, reader, depth) for key, value in content
            }
        items = (_decode(item, reader, depth) for item in content)
        return CONTAINERS[kind](items)
    except (KeyError, TypeError, ValueError):  # no such kind, no pair, an unhashable key
        raise WireError("an answer is not plain data") from None


def _decode_tensor(dtype: Any, shape: list[int], reader: _Reader) -> torch.Tensor:
    import torch

    if type(dtype) is not str or dtype not in TENSOR_DTYPES:
        raise WireError("an answer holds a tensor of an unknown dtype")
    data = reader.take(math.prod(shape) * TENSOR_DTYPES[dtype])
    if not data:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(shape)


def _decode_array(dtype: Any, shape: list[int], reader: _Reader) -> np.ndarray[Any, Any]:
    try:
        kind = np.dtype(dtype) if type(dtype) is str else None
    except TypeError:
        kind = None
    if kind is None or kind.kind not in ARRAY_KINDS:
        raise WireError("an answer holds an array of an unknown dtype")
    data = reader.take(math.prod(shape) * kind.itemsize)
    return np.frombuffer(data, dtype=kind).reshape(shape)


def _shape(tree: dict[str, Any]) -> list[int]:
    shape = tree.get("shape")
    if type(shape) is not list or len(shape) > MAX_DEPTH:
        raise WireError("an answer holds a tensor without a shape")
    return [_size(side) for side in shape]


def _size(number: Any) -> int:
    if type(number) is not int or not 0 <= number <= 2**40:
        raise WireError("an answer holds a size that is none")
    return number
