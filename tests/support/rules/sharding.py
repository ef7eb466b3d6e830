"""Mistakes in an optimizer that steps each parameter on only one rank.

They are recognised by each rank's parameters after every step, `value[step][parameter]`, compared
with the parameters of torch's own optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.differences import describe_difference
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import ranks_text

GUIDE = "Sharding the optimizer"


def not_gathered(before: Sequence[Any]) -> Rule:
    """Return the rule for parameters that a step did not change on some ranks.

    Args:
        before: the initial parameters, which are the same on all ranks.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        found = list(_stale(seen, expected, before))
        if not found:
            return None
        ranks = tuple(sorted({rank for rank, _, _ in found}))
        if len(found) == sum(len(row) for value in seen for row in value):
            text = (
                "No step changed any parameter on any rank. Either no rank steps its parameters, "
                "or the new values are overwritten by a rank that does not own the parameters."
            )
            return Diagnosis("does-not-learn", ranks, text, guide=GUIDE)
        rank, step, parameter = found[0]
        text = (
            f"On {ranks_text(ranks)}, a step left some parameters unchanged: for example parameter "
            f"{parameter} on rank {rank} in step {step + 1}. Every parameter needs an owner that "
            "steps it, and after each step every rank must receive it from its owner."
        )
        return Diagnosis("parameters-not-gathered", ranks, text, guide=GUIDE)

    return rule


def _stale(
    seen: Observation, expected: Any, before: Sequence[Any]
) -> Iterator[tuple[int, int, int]]:
    """Yield (rank, step, parameter) for each parameter that a step should have changed."""
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
    """Recognise ranks that end with different parameters."""
    if expected is None or all(close(value, seen[0]) for value in seen):
        return None
    text = (
        "After the steps, the ranks have different parameters. After each step, every rank must "
        "receive each parameter from its owner."
    )
    return Diagnosis("models-differ", tuple(range(len(seen))), text, guide=GUIDE)


def not_sharded(kept: Sequence[int], whole: int) -> Diagnosis | None:
    """Return the diagnosis if every rank keeps the state of all parameters.

    Args:
        kept: by rank, the number of elements in the states of all optimizers that it created.
        whole: the number of elements without sharding.
    """
    if len(kept) == 1 or min(kept) < whole:
        return None
    text = (
        "The parameters are right, but every rank steps all parameters and keeps the complete "
        f"optimizer state ({kept[0]} elements). Each rank must step only its own share, keep the "
        "state of only that share, and receive the other parameters from their owners."
    )
    return Diagnosis("state-not-sharded", tuple(range(len(kept))), text, guide=GUIDE)


def other_steps(case: str, advice: str = "") -> Rule:
    """Return the rule that reports steps that differ for an unknown reason.

    Args:
        case: what was tried, at the beginning of a sentence: "With a scheduler".
        advice: a sentence on what to do next.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        steps = range(len(expected[0]))
        first = next((s for s in steps if not _same(seen, expected, s)), 0)
        text = (
            f"{case}, the parameters are wrong from step {first + 1}: an unsharded optimizer gives "
            "different values"
            f"{describe_difference(_after(seen, first), _after(expected, first))}."
        )
        text = f"{text} {advice}".rstrip()
        everyone = tuple(range(len(seen)))
        return Diagnosis("differs-from-single-process", everyone, text, guide=GUIDE)

    return rule


def _after(values: Sequence[Any], step: int) -> list[dict[str, Any]]:
    """Return each rank's parameters after a step, with names for a message."""
    return [{f"parameter {i}": param for i, param in enumerate(v[step])} for v in values]


def used_up(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a run in which torch found no parameters because an iterator was exhausted."""
    return _raised_by_torch(
        seen,
        "empty parameter list",
        "`params` may be an iterator, such as model.parameters(): a second loop over it yields "
        "nothing. Go through it once, and keep the parameters in a list.",
    )


def missing_defaults(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a run in which a scheduler did not find a setting in `defaults`."""
    return _raised_by_torch(
        seen,
        "must support momentum",
        "Schedulers look up settings in an optimizer's `defaults`, here `momentum`. The `defaults` "
        "of a ShardedOptimizer must be the `defaults` of the optimizer that it shards.",
    )


def _raised_by_torch(seen: Observation, phrase: str, reason: str) -> Diagnosis | None:
    """Return a run's diagnosis with its reason added, if the phrase is in torch's message."""
    failure = seen.failure
    if failure is None or phrase not in (failure.detail or ""):
        return None
    text = f"{failure.diagnosis.explanation} {reason}"
    return replace(failure.diagnosis, explanation=text, guide=GUIDE)


def _same(seen: Observation, expected: Any, step: int) -> bool:
    return all(close(value[step], expected[rank][step]) for rank, value in enumerate(seen))
