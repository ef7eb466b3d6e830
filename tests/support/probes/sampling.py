"""Probes for samplers: passes, bad arguments, global random states."""

from __future__ import annotations

import operator
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from support.probes import raised, salt_hashes
from support.probes.returned import WrongReturn, described, items_of

Case = tuple[str, int, int, int, bool]  # the bad argument; samples, num_replicas, rank, shuffle


def indices_of(sampler: Iterable[Any]) -> list[int]:
    """Return the indices that a pass yields, of any type that can index a list.

    Raises:
        WrongReturn: `__iter__` returns no iterator, or the pass yields no indices, or does not end.
    """
    return [_index(index) for index in items_of(_begin(sampler), "a pass over the sampler")]


def length_of(sampler: Any) -> int:
    """Return the sampler's length.

    Raises:
        WrongReturn: `__len__` returns no int.
    """
    length = type(sampler).__len__(sampler)
    if isinstance(length, int):
        return length
    raise WrongReturn(f"`__len__` of the sampler returns {described(length)}. It must be an int.")


def _begin(sampler: Iterable[Any]) -> Iterator[Any]:
    """Begin a pass."""
    iterator = type(sampler).__iter__(sampler)
    if isinstance(iterator, Iterator):
        return iterator
    raise WrongReturn(
        f"`__iter__` of the sampler returns {described(iterator)}. It must return an iterator: use "
        "`iter(...)` or `yield`."
    )


def _index(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise WrongReturn(
            f"a pass over the sampler yields {described(value)}. It must yield integers, the "
            "indices of samples."
        ) from None


def passes_of_epochs(make: Callable[[], Any]) -> list[list[int]]:
    """Return a new sampler's pass, its passes after `set_epoch` of 0, 1, 2 and 0, and two more.

    Before the first of these two, no epoch is set; before the second, the epoch of a different
    sampler is set.
    """
    sampler = make()
    passes = [indices_of(sampler)]
    for epoch in (0, 1, 2, 0):
        sampler.set_epoch(epoch)
        passes.append(indices_of(sampler))
    passes.append(indices_of(sampler))
    make().set_epoch(1)
    passes.append(indices_of(sampler))
    return passes


def refusals(sampler_class: Callable[..., Any], cases: Sequence[Case]) -> list[Any]:
    """Return how each case's arguments are refused: [is it a ValueError, its type, its text].

    None means no error. Valid arguments are tried first; an error that they cause is raised.
    """
    _go_through(sampler_class, 10, 4, 3, shuffle=True)
    answers: list[Any] = []
    for _, samples, num_replicas, rank, shuffle in cases:
        call = partial(_go_through, sampler_class, samples, num_replicas, rank, shuffle=shuffle)
        error = raised(call)
        answer = [isinstance(error, ValueError), type(error).__name__, str(error)]
        answers.append(answer if error else None)
    return answers


def _go_through(
    sampler_class: Callable[..., Any], samples: int, num_replicas: int, rank: int, *, shuffle: bool
) -> None:
    indices_of(sampler_class(range(samples), num_replicas=num_replicas, rank=rank, shuffle=shuffle))


def be_another_process(rank: int) -> list[bytes]:
    """Make this rank differ from the others like a separately started process.

    The global random states, hashes of strings and clocks differ, and the addresses of new objects
    differ while the caller keeps the returned value.
    """
    torch.manual_seed(rank)
    np.random.seed(rank)
    random.seed(rank)
    salt_hashes(rank)
    _be_late(3600 * rank)
    sizes = range(0, 480, 16)  # the sizes that Python's own allocator has pools for, minus a header
    return [bytes(size) for size in sizes for _ in range(rank)]


def _be_late(seconds: int) -> None:
    """Put the clock of the module `time` forward."""
    plain, plain_ns = time.time, time.time_ns
    time.time = lambda: plain() + seconds
    time.time_ns = lambda: plain_ns() + seconds * 10**9


def random_states() -> dict[str, str]:
    """Return the global random state of each library that has one."""
    name, keys, *rest = np.random.get_state()
    return {
        "torch": repr(torch.get_rng_state().tolist()),
        "numpy": repr((name, np.asarray(keys).tolist(), rest)),
        "random": repr(random.getstate()),
    }


def pass_watched(
    sampler: Iterable[Any], before: Mapping[str, str]
) -> tuple[list[int], list[str], list[str]]:
    """Return the indices of a pass, and `changed_since` after its first index and at its end."""
    indices = _begin(sampler)
    first = indices_of(islice(indices, 1))
    during = changed_since(before)
    return first + indices_of(indices), during, changed_since(before)


def changed_since(before: Mapping[str, str]) -> list[str]:
    """Return the libraries whose global random state has changed."""
    after = random_states()
    return [name for name in before if before[name] != after[name]]
