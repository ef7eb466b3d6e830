"""Mistakes in the norm of gradients of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gradsync.records import Diagnosis
from gradsync.testing.values import close

GUIDE = "The norm of all gradients"


def norm_mistake(
    norms: Sequence[float], grads: Mapping[str, Any], limit: float = math.inf
) -> Diagnosis | None:
    """Return the diagnosis of the norm that each rank returned; None if it is right.

    Args:
        norms: the returned norms, by rank.
        grads: all whole gradients, before clipping.
        limit: the `max_norm` of the call.
    """
    squares = {name: float((grad**2).sum()) for name, grad in grads.items()}
    sharded = sum(squares[name] for name, grad in grads.items() if grad.ndim > 1)
    small = sum(squares.values()) - sharded
    right = math.sqrt(sharded + small)
    if close(list(norms), [right] * len(norms)):
        return None
    size = len(norms)
    shown = f"clip_grad_norm_ returns {[round(norm, 4) for norm in norms]} by rank, but the norm "
    shown += f"of all gradients is {right:.4f}: "
    everyone = tuple(range(size))

    def found(code: str, text: str) -> Diagnosis:
        return Diagnosis(code, everyone, shown + text, guide=GUIDE)

    if not close(list(norms), [norms[0]] * size):
        return found(
            "norm-of-one-shard",
            "each rank takes the norm of its own parts. Add up the squares over all ranks first.",
        )
    for value, code, text in (
        (
            math.sqrt(sharded + size * small),
            "counted-twice",
            "a replicated gradient is the same on every rank, but counts once for each rank. Add "
            "up only the squares of sharded gradients over the ranks.",
        ),
        (
            math.sqrt(sharded / size + small),
            "divided-twice",
            "the squares of the parts are averaged over ranks. The squares of the whole are their "
            "sum.",
        ),
        (
            math.sqrt(sharded),
            "only-some-parameters",
            "the replicated gradients are left out. They count once.",
        ),
        (math.sqrt(small), "only-some-parameters", "the sharded gradients are left out."),
        (sharded + small, "norm-not-a-root", "this is the sum of squares. Take its square root."),
        (limit, "differs-from-single-process", "this is max_norm. Return the norm before scaling."),
    ):
        if close(norms[0], value):
            return found(code, text)
    if math.isfinite(norms[0]) and norms[0] > right:
        return found(
            "norms-added",
            "it is too large. Norms of parts must not be added up: add up their squares, then take "
            "the square root.",
        )
    return found(
        "differs-from-single-process",
        "it is the square root of the sum of all squares, each element once.",
    )
