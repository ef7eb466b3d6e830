"""Ranks that go through a model in an order that depends on the process, such as hash order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from gradsync.records import Diagnosis, Observation
from gradsync.testing.values import close

OBJECTS = "uint8"  # the dtype in which pickled objects are sent: they may contain names
FAILURES = ("deadlock-order-differs", "shape-mismatch", "deadlock-rank-missing", "rank-crashed")


Numbers = Sequence[float]


def mixed_means(own: Sequence[Numbers]) -> list[list[Numbers]]:
    """Return the means that each rank can get for each tensor, if the orders of ranks differ.

    Each is the mean of the rank's own tensor and of any tensor of each other rank.

    Args:
        own: a number for each tensor of each rank, before they are averaged.
    """
    return [
        [
            [
                sum(chosen) / len(own)
                for chosen in itertools.product(
                    *[[one] if r == rank else own[r] for r in range(len(own))]
                )
            ]
            for one in own[rank]
        ]
        for rank in range(len(own))
    ]


def order_depends_on_names(
    seen: Observation,
    wanted: Numbers,
    possible: Sequence[Sequence[Numbers]],
    doing: str,
    guide: str,
) -> Diagnosis | None:
    """Recognise wrong results of ranks whose parameters have different names, in the same order.

    A submission that exchanges names between the ranks is not judged: it may need equal names.

    Args:
        seen: the run, or its failure; each rank's value has a number for each tensor.
        wanted: these numbers, on every rank.
        possible: for each tensor of each rank, the numbers that ranks in different orders can get.
        doing: what the function did to the tensors, such as "averaged".
        guide: the heading of GUIDELINES.md.
    """
    if any(event.collective and event.collective.dtype == OBJECTS for event in seen.events):
        return None
    failure, where = seen.failure, None
    if failure is not None:
        last = {e.rank: e.collective for e in seen.events if e.collective is not None}
        # Ranks that only take the tensors in different orders make the same calls.
        alike = len({call.op for call in last.values()}) == 1 and len(last) == seen.world_size
        if failure.diagnosis.code not in FAILURES or not alike:
            return None
        where = failure.diagnosis.where
    elif all(close(numbers, list(wanted)) for numbers in seen):
        return None
    elif all(close(numbers, seen[0]) for numbers in seen):
        return None  # a different mistake: different orders would lead to different values
    elif not all(_are_possible(*pair) for pair in zip(seen, possible, strict=True)):
        return None
    text = (
        "In this test, the parameters have different names on each rank, in the same order. Each "
        f"parameter was {doing} with a different parameter of the other ranks. The order of the "
        "calls depends on hashes or addresses, for example because of a set, and these differ "
        "between processes. Go through the parameters in the model's own order."
    )
    ranks = tuple(range(seen.world_size))
    return Diagnosis("deadlock-order-differs", ranks, text, where, guide)


def _are_possible(numbers: Sequence[float | None], possible: Sequence[Numbers]) -> bool:
    return len(numbers) == len(possible) and all(
        number is not None and np.isclose(number, others).any()
        for number, others in zip(numbers, possible, strict=True)
    )
