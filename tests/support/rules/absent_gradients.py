"""Mistakes with parameters that have no gradient on some ranks, or are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradsync.ranks.deadlocks.explanations import without_advice
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import array, close
from gradsync.text import full_stop, ranks_text
from support.rules.gradients import GUIDE, agree, found, wrong_names
from support.rules.reductions import last_reduce
from support.rules.waiting import leaves_a_result, nobody_waited
from support.rules.wrong_results import ends_with


def none_gradient_skipped(without: Sequence[int], name: str) -> Rule:
    """Recognise ranks without a gradient that skipped a collective, or were not counted."""
    ranks = f"{ranks_text(without).capitalize()} had no gradient of {name}"

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        failure = seen.failure
        if failure is not None:
            if failure.status != "deadlock" or not _skipped(seen, without, name):
                return None
            text = (
                f"{full_stop(without_advice(failure.diagnosis.explanation))} {ranks} and skipped "
                "this call. A rank without a gradient must contribute zeros."
            )
            return found("none-gradient-skipped", without, text, failure.diagnosis.where)
        if wrong_names(seen, expected) != [name]:
            return None
        if unawaited := nobody_waited(seen, GUIDE):  # then wrong values do not show another mistake
            return unawaited
        having = [r for r in range(seen.world_size) if r not in without]
        if all(close(seen[r].get(name), expected[r][name]) for r in having):
            text = (
                f"{ranks} and did not receive the mean. Every rank needs it, or the ranks take "
                "different steps. Store the mean on the ranks without a gradient too."
            )
            return found("none-gradient-skipped", without, text, last_reduce(seen))
        if len(expected[0]) == 1:  # it is the only gradient, so this can be a different mistake
            return None
        by_those = [array(expected[r][name]) for r in having]
        share = len(having) / seen.world_size
        # Of one rank's gradient, a mean that only this rank has may be its own, never averaged.
        if (len(having) > 1 or agree(seen, [name])) and all(
            mean is not None and close(seen[r].get(name), mean / share)
            for r, mean in zip(having, by_those, strict=True)
        ):
            text = (
                f"{ranks}, and the sum was divided by {len(having)}, the number of ranks that had "
                "one. A missing gradient counts as zero, so divide by the number of all ranks, "
                f"{seen.world_size}."
            )
            return found("none-gradient-skipped", without, text, last_reduce(seen))
        if agree(seen, [name]):
            text = (
                f"{ranks}, and all ranks end with the same wrong mean. The ranks without a "
                "gradient should contribute zeros, but contributed other values. A new tensor "
                "contains arbitrary values unless it is created with zeros."
            )
            return found("none-gradient-skipped", without, text, last_reduce(seen))
        return None

    return rule


def _skipped(seen: Observation, without: Sequence[int], name: str) -> bool:
    """Return whether the ranks without a gradient skipped its collective, or used other shapes.

    The other ranks must be in a collective that may be for that gradient, and not in a barrier.
    """
    last = {r: c[-1] for r in range(seen.world_size) if (c := seen.collectives(r))}
    having = [collective for rank, collective in last.items() if rank not in without]
    if not having or not all(_may_be_on(collective, name) for collective in having):
        return False
    known = seen.failure.diagnosis if seen.failure else None
    if known and known.code == "deadlock-rank-missing" and set(known.ranks) == set(without):
        return True
    brought = {last[rank].shapes for rank in without if rank in last}
    wanted = {collective.shapes for collective in having}
    return len(brought) == len(wanted) == 1 and brought != wanted


def _may_be_on(collective: Collective, name: str) -> bool:
    """Return whether a collective leaves a result and may be for this parameter's gradient."""
    is_other = collective.label is not None and collective.label != f"{name}.grad"
    return leaves_a_result(collective) and not is_other


def frozen_mistakes(stale: np.ndarray[Any, Any]) -> list[Rule]:
    """Return the rules for the gradients of a frozen layer.

    A value is [gradient of the weight, whether the bias has no gradient]. Before the call the
    weight had the gradient `stale` (rank, out, in), and the bias had none.
    """
    averaged = "The gradient of a frozen parameter was averaged."
    new = "A frozen parameter had no gradient before the call, and has one afterwards."
    kept = " Leave frozen parameters unchanged."
    means = [[[stale.mean(0), none]] * len(stale) for none in (True, False)]
    return [
        *(ends_with(mean, "frozen-touched", averaged + kept, GUIDE) for mean in means),
        ends_with([[own, False] for own in stale], "frozen-touched", new + kept, GUIDE),
        _changed("The gradient of a frozen parameter was changed or removed." + kept),
    ]


def _changed(text: str) -> Rule:
    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        wrong = [rank for rank in range(seen.world_size) if not close(seen[rank], expected[rank])]
        return found("frozen-touched", wrong, text)

    return rule
