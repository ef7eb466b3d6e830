"""Mistakes in calling a collective that reduces: its tensor, its operation, its receiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.ranks.deadlocks.calls import numel
from gradsync.ranks.deadlocks.explanations import line_text
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from support.rules.vectors import flat

OPERATIONS = {"MAX": "largest", "MIN": "smallest", "PRODUCT": "product"}


def parameters_passed(guide: str) -> Rule:
    """Recognise ranks that reduce their parameters and no gradient, if gradients are wrong."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        names = expected[0].keys() if expected and isinstance(expected[0], Mapping) else ()
        calls = _reductions(seen)
        passed = [call for call in calls if call.label in names]
        if not passed or any((call.label or "").endswith(".grad") for call in calls):
            return None
        first = passed[0]
        text = (
            f"The {first.op} at {line_text(first)} is called with the parameter {first.label}, not "
            f"with its gradient. So every rank keeps its own gradients, and the parameters are "
            "summed instead. Pass the parameter's `grad`."
        )
        return _found("gradients-not-synchronised", seen, text, first.where, guide)

    return rule


def another_operation(local: Sequence[Any], guide: str) -> Rule:
    """Recognise the largest or the smallest of the ranks' elements, or their product."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        parts = [part for gradients in local if (part := flat([gradients])) is not None]
        values = [flat([value]) for value in seen]
        if expected is None or not 1 < len(parts) == len(local):
            return None
        used = {call.reduce for call in _reductions(seen)} & OPERATIONS.keys()
        for operation, extreme in (("MAX", np.max), ("MIN", np.min), ("PRODUCT", np.prod)):
            one = extreme(np.stack(parts), axis=0)
            divided = close(values, [one / len(parts)] * len(parts))
            if not (divided or close(values, [one] * len(parts))):
                continue
            if one.size == 1 and operation not in used:  # a single number may match by chance
                continue
            by = f", divided by {len(parts)}" if divided else ""
            text = (
                f"Every element is the {OPERATIONS[operation]} of the ranks' elements{by}. An "
                "all-reduce has several operations; use the sum."
            )
            return _found("sum-not-mean", seen, text, last_reduce(seen), guide)
        return None

    return rule


def only_one_rank(guide: str) -> Rule:
    """Recognise a mean that only one rank has."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or seen.world_size < 2:
            return None
        right = [rank for rank in range(seen.world_size) if close(seen[rank], expected[rank])]
        if len(right) != 1:
            return None
        calls = _reductions(seen)
        alone = ""
        if calls and all(call.op == "reduce" and call.root == right[0] for call in calls):
            alone = " `reduce` delivers the sum to a single rank; `all_reduce` delivers it to all."
        text = (
            f"Only rank {right[0]} ends with the mean of the gradients. Every rank needs it, or "
            f"the ranks take different steps.{alone}"
        )
        others = tuple(rank for rank in range(seen.world_size) if rank not in right)
        return Diagnosis("only-one-rank-has-it", others, text, last_reduce(seen), guide)

    return rule


def parameters_averaged(names: Sequence[str], guide: str) -> Rule:
    """Return the rule for ranks that sum parameters with these names instead of gradients."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        calls = [c for c in seen.collectives(0) if "reduce" in c.op and c.label in names]
        if not calls:
            return None
        text = (
            f"The ranks average their parameters, such as {calls[0].label}, instead of their "
            "gradients. So each rank steps with its own gradients, and the optimizers' states "
            "differ between the ranks. Average the gradients before the step."
        )
        ranks = tuple(range(seen.world_size))
        return Diagnosis("gradients-not-synchronised", ranks, text, calls[0].where, guide)

    return rule


def last_reduce(seen: Observation) -> str | None:
    """Return the line of the last collective that reduced something."""
    lines = [
        event.collective.where
        for event in seen.events
        if event.collective is not None and "reduce" in event.collective.op
    ]
    return lines[-1] if lines else None


def reduced_over_all(seen: Observation, size: int) -> str | None:
    """Return the line of the last all-reduce, if all ranks reduce at least `size` elements."""
    for rank in range(seen.world_size):
        calls = [c for c in seen.collectives(rank) if c.op == "all_reduce"]
        if sum(numel(c) for c in calls if len(c.members) == seen.world_size) < size:
            return None
    return last_reduce(seen)


def _reductions(seen: Observation) -> list[Collective]:
    """Return the calls of all ranks that reduce something."""
    calls = [call for rank in range(seen.world_size) for call in seen.collectives(rank)]
    return [call for call in calls if "reduce" in call.op]


def _found(code: str, seen: Observation, text: str, where: str | None, guide: str) -> Diagnosis:
    return Diagnosis(code, tuple(range(seen.world_size)), text, where, guide)
