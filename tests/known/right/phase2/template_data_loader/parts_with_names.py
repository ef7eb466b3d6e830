"""Microbatches are named tuples, in an own kind of list."""

from typing import NamedTuple


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


class Parts(list):
    pass


class PartsError(ValueError):
    pass


def split_microbatches(batch, num_microbatches):
    if not 1 <= num_microbatches <= len(batch[0]):
        raise PartsError(num_microbatches)
    parts = zip(*(tensor.tensor_split(num_microbatches) for tensor in batch))
    return Parts(Pair(*part) if len(part) == 2 else part for part in parts)
