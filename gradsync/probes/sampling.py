"""What is asked of a sampler on a rank: its passes, its refusals, what it does to random states."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from gradsync.probes import raised, salt_hashes
from gradsync.probes.returned import items_of

Case = tuple[str, int, int, int, bool]  # what can't be; samples, num_replicas, rank, shuffle


def indices_of(sampler: Iterable[Any]) -> list[int]:
    """Return what a pass yields: whatever a list can be indexed with will do."""
    return [operator.index(index) for index in items_of(sampler, "a pass of the sampler")]


def passes_of_epochs(make: Callable[[], Any]) -> list[list[int]]:
    """Return a new sampler's pass, those after `set_epoch` of 0, 1, 2 and again 0, and two more.

    Of these, no epoch is set before the first, and that of another sampler before the second.
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
    """Return what each case's arguments end in: whether a ValueError, its name and text, or None.

    Arguments with nothing wrong are tried first; an error that they end in is raised.
    """
    _go_through(sampler_class, 10, 4, 3, shuffle=True)
    answers: list[Any] = []
    for _, samples, num_replicas, rank, shuffle in cases:
        call = partial(_go_through, sampler_class, samples, num_replicas, rank, shuffle=shuffle)
        error = raised(call)
        told = [isinstance(error, ValueError), type(error).__name__, str(error)]
        answers.append(told if error else None)
    return answers


def _go_through(
    sampler_class: Callable[..., Any], samples: int, num_replicas: int, rank: int, *, shuffle: bool
) -> None:
    sampler = sampler_class(range(samples), num_replicas=num_replicas, rank=rank, shuffle=shuffle)
    indices_of(sampler)


def be_another_process(rank: int) -> None:
    """Give this rank what differs between processes: global random states, hashes of texts."""
    torch.manual_seed(rank)
    np.random.seed(rank)
    random.seed(rank)
    salt_hashes(rank)


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
    """Return what a pass yields, and `changed_since` after its first index and at its end."""
    indices = iter(sampler)
    first = [operator.index(index) for index in islice(indices, 1)]
    during = changed_since(before)
    return first + indices_of(indices), during, changed_since(before)


def changed_since(before: Mapping[str, str]) -> list[str]:
    """Return the libraries whose global random state is another one than it was."""
    after = random_states()
    return [name for name in before if before[name] != after[name]]
