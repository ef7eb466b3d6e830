"""Mistakes in averaging gradients. Values are {parameter name: gradient}, one dict a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.diagnose import Rule
from gradsync.diagnose.values import array, close
from gradsync.records import Diagnosis, Observation

GUIDE = "Gradient aggregation"
Gradients = Mapping[str, Any]


def gradient_mistakes(local: Sequence[Gradients]) -> list[Rule]:
    """Return the rules, given the gradients that each rank had before.

    A rule is asked with `expected` as one dict a rank.
    """
    return [not_synchronised(local), wrong_scale, only_one_rank, only_some_parameters]


def not_synchronised(local: Sequence[Gradients]) -> Rule:
    """Every rank still has its own gradients."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not close(list(seen), list(local)):
            return None
        return Diagnosis(
            "gradients-not-synchronised",
            tuple(range(seen.world_size)),
            "every rank still has its own gradients, as they were before the call: nothing was "
            "exchanged, so each rank would step in a direction of its own (GUIDELINES, "
            f"{GUIDE})",
            guide=GUIDE,
        )

    return rule


def wrong_scale(seen: Observation, expected: Any) -> Diagnosis | None:
    """Every gradient is the same multiple of the mean."""
    if expected is None:
        return None
    factor = _common_factor(list(seen), expected)
    if factor is None or abs(factor - 1) < 1e-3 or factor <= 0:
        return None
    size = seen.world_size
    ranks = tuple(range(size))
    where = last_reduce(seen)
    at = f" The all-reduce is at {where}" if where else " See"
    if abs(factor - size) < 1e-3 * size:
        text = (
            f"every gradient is exactly {size} times the mean of the ranks': you summed over "
            f"{size} ranks and did not divide.{at} (GUIDELINES, {GUIDE})"
        )
        return Diagnosis("sum-not-mean", ranks, text, where, GUIDE)
    if abs(factor * size - 1) < 1e-3:
        text = (
            f"every gradient is {size} times too small: the sum over {size} ranks was divided by "
            f"{size} twice.{at} (GUIDELINES, {GUIDE})"
        )
        return Diagnosis("divided-twice", ranks, text, where, GUIDE)
    code = "sum-not-mean" if factor > 1 else "divided-twice"
    text = (
        f"every gradient is {factor:.4g} times the mean of the {size} ranks': the sum was divided "
        f"by {size / factor:.4g}, where {size} ranks took part.{at} (GUIDELINES, {GUIDE})"
    )
    return Diagnosis(code, ranks, text, where, GUIDE)


def only_one_rank(seen: Observation, expected: Any) -> Diagnosis | None:
    """One rank ended with the mean, the others without."""
    if expected is None or seen.world_size < 2:
        return None
    right = [rank for rank in range(seen.world_size) if close(seen[rank], expected[rank])]
    if len(right) != 1:
        return None
    others = tuple(rank for rank in range(seen.world_size) if rank not in right)
    text = (
        f"rank {right[0]} alone ends with the mean of the gradients: the other ranks need it as "
        f"well, or they step in another direction (GUIDELINES, {GUIDE})"
    )
    return Diagnosis("only-one-rank-has-it", others, text, last_reduce(seen), GUIDE)


def only_some_parameters(seen: Observation, expected: Any) -> Diagnosis | None:
    """Some parameters are right on every rank, others are not."""
    if expected is None or not all(isinstance(value, Mapping) for value in seen):
        return None
    names = list(expected[0])
    wrong = [
        n for n in names if any(not close(seen[r].get(n), e[n]) for r, e in enumerate(expected))
    ]
    if not 0 < len(wrong) < len(names):
        return None
    ranks = tuple(
        r for r, e in enumerate(expected) if any(not close(seen[r].get(n), e[n]) for n in wrong)
    )
    text = (
        f"{', '.join(wrong)} did not end as the mean over the ranks, while "
        f"{', '.join(n for n in names if n not in wrong)} did: every trainable parameter has to "
        f"take part (GUIDELINES, {GUIDE})"
    )
    return Diagnosis("only-some-parameters", ranks, text, last_reduce(seen), GUIDE)


def none_gradient_skipped(without: Sequence[int], names: Sequence[str]) -> Rule:
    """Ranks without a gradient left a collective out that the others wait in."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        failure = seen.failure
        stopped = failure is not None and failure.status == "deadlock"
        if not stopped and (expected is None or close(list(seen), expected)):
            return None
        if failure is not None and not stopped:
            return None
        told = (
            failure.diagnosis.explanation
            if failure is not None
            else "the other ranks' mean leaves its zero out"
        )
        has = f"rank{'s' * (len(without) != 1)} {', '.join(map(str, without))} had"
        text = (
            f"{told}. The gradient of {', '.join(names)} was None there: {has} nothing to add, but "
            f"must take part all the same, with zeros (GUIDELINES, {GUIDE})"
        )
        where = failure.diagnosis.where if failure is not None else last_reduce(seen)
        return Diagnosis("none-gradient-skipped", tuple(without), text, where, GUIDE)

    return rule


def last_reduce(seen: Observation) -> str | None:
    """Return the line of the last collective that added something up."""
    lines = [
        event.collective.where
        for event in seen.events
        if event.collective is not None and "reduce" in event.collective.op
    ]
    return lines[-1] if lines else None


def _common_factor(values: list[Any], expected: Any) -> float | None:
    """Return c where all of `values` are c times `expected`."""
    one, other = _flat(values), _flat(expected)
    if one is None or other is None or one.shape != other.shape or not other.any():
        return None
    factor = float(one @ other / (other @ other))
    return factor if close(one, factor * other) else None


def _flat(values: Any) -> np.ndarray[Any, Any] | None:
    """Return all numbers of a list of dicts in one vector."""
    arrays = [array(v) for value in values if isinstance(value, Mapping) for v in value.values()]
    if not arrays or any(a is None for a in arrays):
        return None
    return np.concatenate([a.reshape(-1) for a in arrays if a is not None])
