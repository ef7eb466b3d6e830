"""Mistakes in an optimizer that steps each parameter on only one rank.

They are recognised by each rank's parameters after every step, `value[step][parameter]`, compared
with the parameters of torch's own optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradsync.records import Diagnosis, Observation
from gradsync.testing.differences import describe_difference
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import listed, ranks_text, verb
from support.rules.buckets import nobody_waited, with_guide

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


def step_mistakes(before: Sequence[Any], case: str, advice: str = "") -> list[Rule]:
    """Return the rules for parameters after each step; see `not_gathered` and `other_steps`."""
    return [
        with_guide(nobody_waited, GUIDE),
        not_gathered(before),
        ranks_differ,
        other_steps(case, advice),
    ]


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


def closure_without_gradients(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a run in which the closure's backward found no graph."""
    return _raised_by_torch(
        seen,
        "does not require grad",
        "The closure runs forward and backward, so step(closure) must call it with gradient "
        "tracking. Under `torch.no_grad()`, call it in a block of `torch.enable_grad()`.",
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


def unevenly_sharded(
    kept: Sequence[Sequence[int]], sizes: Sequence[int], when: str
) -> Diagnosis | None:
    """Recognise ranks that keep more than their share of Adam's state, or that do not show it.

    Args:
        kept: by rank, the elements of state in all of its optimizers, and in `.state`.
        sizes: the elements of each parameter; Adam keeps two for each of them.
        when: a clause to append to a sentence, or "".
    """
    total, world_size = sum(sizes), len(kept)
    limit = 2 * (math.ceil(total / world_size) + max(sizes))
    most = [max(elements, shown) for elements, shown in kept]
    over = tuple(rank for rank in range(world_size) if most[rank] > limit)
    shown = [elements for _, elements in kept]
    if over:
        text = (
            f"{ranks_text(over).capitalize()} {verb(over, 'keeps', 'keep')} optimizer state of "
            f"{listed(most[rank] for rank in over)} elements{when}. The complete state has "
            f"{2 * total} elements: two for each element of a parameter. Each of {world_size} "
            f"ranks may keep an even share plus one parameter, at most {limit} elements. Balance "
            "the numbers of elements, not of parameters, over all groups together."
        )
        return Diagnosis("state-not-sharded", over, text, guide=GUIDE)
    if sum(shown) == 2 * total:
        return None
    text = (
        f"`.state` has {listed(shown)} elements on {ranks_text(range(world_size))}{when}, but the "
        f"complete state has {2 * total}. Each rank's `.state` must contain the state of its own "
        "share, and each parameter must belong to one rank."
    )
    return Diagnosis("state-not-sharded", tuple(range(world_size)), text, guide=GUIDE)


def unlike_an_optimizer(
    seen: Sequence[Mapping[str, Any]], groups: Sequence[Sequence[int]]
) -> Diagnosis | None:
    """Recognise an optimizer without some parameters, or whose zero_grad does not clear them.

    Args:
        seen: by rank, what `support.probes.sharding.probe_groups` returns.
        groups: the numbers of the parameters in each group.
    """
    shown = [[sorted(group) for group in value["groups"]] for value in seen]
    for holds, code, text in (
        (
            all(value["kind"] for value in seen),
            "wrong-signature",
            "A ShardedOptimizer is not a torch.optim.Optimizer. Derive it from that class: "
            "schedulers, for example, refuse anything else.",
        ),
        (
            all(own == [sorted(group) for group in groups] for own in shown),
            "wrong-signature",
            f"`param_groups` of a ShardedOptimizer has the parameters {seen[0]['groups']} on rank "
            f"0, but was created with {groups}. It must contain all parameters, whichever rank "
            "owns them.",
        ),
        (
            all(close(value["settings"], [0.03, 0.1]) for value in seen),
            "wrong-signature",
            f"The learning rates in `param_groups` are {seen[0]['settings']}, but the groups were "
            "created with [0.03, 0.1].",
        ),
        (
            all(value["cleared"] for value in seen),
            "gradients-not-zeroed",
            "After zero_grad, some parameters still have gradients. Each rank must clear the "
            "gradients of all parameters, not only of its share.",
        ),
        (
            all(all(value["zeros_or_none"]) for value in seen),
            "wrong-signature",
            "zero_grad refuses or ignores its argument. As in any torch.optim.Optimizer, `grad` "
            "must be zeros after zero_grad(set_to_none=False), and None after "
            "zero_grad(set_to_none=True). Use the inherited method.",
        ),
    ):
        if not holds:
            return Diagnosis(code, tuple(range(len(seen))), text, guide=GUIDE)
    return None


def closure_misused(
    seen: Sequence[Mapping[str, Any]], losses: Sequence[Sequence[float]]
) -> Diagnosis | None:
    """Recognise steps that call their closure too often, or do not return its loss.

    Args:
        seen: by rank, the `losses` that two steps returned, the number of `calls` of the closure,
            and whether gradients are tracked afterwards, `grad_mode`.
        losses: by rank, the losses of the two steps, or of the first one.
    """
    every = range(len(seen))
    empty = [rank for rank in every if None in seen[rank]["losses"]]
    known = len(losses[0])  # of the losses
    other = [r for r in every if not close(seen[r]["losses"][:known], list(losses[r]))]
    often = [rank for rank in every if seen[rank]["calls"] != 2]
    for ranks, code, text in (
        (
            empty,
            "wrong-signature",
            f"step(closure) returns None on {ranks_text(empty)}. Call the closure on every rank, "
            "and return its result.",
        ),
        (
            often,
            "differs-from-single-process",
            f"Two calls of step(closure) call the closure {seen[often[0]]['calls'] if often else 2}"
            " times. A closure runs forward and backward: call it once in each step.",
        ),
        (
            other,
            "wrong-signature",
            "step(closure) does not return the closure's result. Call the closure once in each "
            "step, and return its result.",
        ),
        (
            [rank for rank in every if not seen[rank]["grad_mode"]],
            "mode-not-restored",
            "After step(closure), gradient tracking stays off. Restore it at the end of the step.",
        ),
    ):
        if ranks:
            return Diagnosis(code, tuple(ranks), text, guide=GUIDE)
    return None
