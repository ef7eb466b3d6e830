"""Mistakes of an optimizer whose parameters are stepped by one rank each.

What they are recognised by: each rank's parameters after every step, `value[step][parameter]`, and
those that torch's own optimizer would make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gradsync.diagnose import Rule
from gradsync.diagnose.differences import told_difference
from gradsync.diagnose.values import close
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text

GUIDE = "Sharding the optimizer"


def not_gathered(before: Sequence[Any]) -> Rule:
    """Return the rule for parameters that a rank still has as they were before a step.

    Args:
        before: the parameters that all ranks began with.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        found = list(_stale(seen, expected, before))
        if not found:
            return None
        ranks = tuple(sorted({rank for rank, _, _ in found}))
        if len(found) == sum(len(row) for value in seen for row in value):
            text = "after a step every parameter is what it was before, on every rank"
            said = (
                f"{text}: nothing was stepped, or what was stepped was written over with what a "
                "rank had that does not own it"
            )
            return Diagnosis("does-not-learn", ranks, said, guide=GUIDE)
        rank, step, parameter = found[0]
        text = (
            f"{ranks_text(ranks)}: after a step some parameters are still what they were before "
            f"it, for one parameter {parameter} on rank {rank} after step {step + 1}. Every "
            "parameter needs an owner that steps it, and after each step every rank needs it as "
            "its owner has it"
        )
        return Diagnosis("parameters-not-gathered", ranks, text, guide=GUIDE)

    return rule


def _stale(
    seen: Observation, expected: Any, before: Sequence[Any]
) -> Iterator[tuple[int, int, int]]:
    """Yield (rank, step, parameter) of what a step should have changed, and did not."""
    for rank, value in enumerate(seen):
        for step, row in enumerate(value):
            formerly = value[step - 1] if step else before
            for index, param in enumerate(row):
                kept = close(param, formerly[index])
                right = expected[rank]
                rests = close(right[step][index], (right[step - 1] if step else before)[index])
                if kept and not rests:
                    yield rank, step, index


def ranks_differ(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise ranks that ended with different parameters."""
    if expected is None or all(close(value, seen[0]) for value in seen):
        return None
    text = "after the steps the ranks have different parameters"
    return Diagnosis("models-differ", tuple(range(len(seen))), text, guide=GUIDE)


def not_sharded(kept: Sequence[int], whole: int) -> Diagnosis | None:
    """Every rank keeps the state of all parameters, so that each steps them all by itself.

    Args:
        kept: by rank, the numbers in the states of all optimizers that it made.
        whole: how many there are without sharding.
    """
    if len(kept) == 1 or min(kept) < whole:
        return None
    text = (
        "the parameters are right, and every rank keeps all of the optimizer's state for that, "
        f"{kept[0]} elements: each steps all parameters itself. Sharded, a rank steps its own "
        "share, keeps the state of that alone, and gets the rest from their owners"
    )
    return Diagnosis("state-not-sharded", tuple(range(len(kept))), text, guide=GUIDE)


def other_steps(case: str) -> Rule:
    """Return the rule that says no more than that the steps are not those of one process."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        steps = range(len(expected[0]))
        first = next((s for s in steps if not _same(seen, expected, s)), 0)
        text = (
            f"{case}: from step {first + 1} on the parameters are not those that the optimizer "
            "itself would have, without sharding"
            f"{told_difference(_after(seen, first), _after(expected, first))}"
        )
        everyone = tuple(range(len(seen)))
        return Diagnosis("differs-from-single-process", everyone, text, guide=GUIDE)

    return rule


def _after(values: Sequence[Any], step: int) -> list[dict[str, Any]]:
    """Return each rank's parameters after a step, by a name that a learner understands."""
    return [{f"parameter {i}": param for i, param in enumerate(v[step])} for v in values]


def used_up(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Know a run in which torch found no parameters, since the iterator over them had ended."""
    return _raised_by_torch(
        seen,
        "empty parameter list",
        "`params` may be an iterator, as model.parameters() is one, and who goes through it a "
        "second time finds nothing. Go through it once, and keep what came",
    )


def missing_defaults(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Know a run in which a scheduler looked for a setting in `defaults` and found none."""
    return _raised_by_torch(
        seen,
        "must support momentum",
        "Schedulers look into an optimizer's `defaults` for the settings that it has, here for "
        "`momentum`: those of a ShardedOptimizer have to be the optimizer's that it shards",
    )


def _raised_by_torch(seen: Observation, phrase: str, reason: str) -> Diagnosis | None:
    """Return a run's failure with its reason, where the phrase stands in what torch says."""
    failure = seen.failure
    if failure is None or phrase not in (failure.detail or ""):
        return None
    text = f"{failure.diagnosis.explanation} {reason}"
    return replace(failure.diagnosis, explanation=text, guide=GUIDE)


def _same(seen: Observation, expected: Any, step: int) -> bool:
    return all(close(value[step], expected[rank][step]) for rank, value in enumerate(seen))
