"""Mistakes in averaging gradients. A value is a dict {parameter name: gradient} for each rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.linalg import norm

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import FLOAT32, ROUNDINGS, close
from gradsync.text import listed, ranks_text
from support.rules.averaged_ranks import in_other_places, one_ranks_own, over_a_part
from support.rules.reductions import (
    another_operation,
    last_reduce,
    only_one_rank,
    parameters_passed,
    reduced_over_all,
)
from support.rules.rounding import is_short, without_fractions
from support.rules.vectors import common_factor, flat

GUIDE = "Gradient aggregation"
Gradients = Mapping[str, Any]
AS_FLOAT64 = ROUNDINGS * 2.0**-52 / FLOAT32  # the tolerance of float64, in roundings of float32
NEARLY, NEARLY_EACH = 0.01, 0.1  # parts of the largest element of all, and of each: sums may cancel


def mean_of(local: Sequence[Gradients]) -> dict[str, Any]:
    """Return the mean over the ranks of each gradient."""
    return {name: sum(grads[name] for grads in local) / len(local) for name in local[0]}


def gradient_mistakes(local: Sequence[Gradients], steps: int = 1) -> list[Rule]:
    """Return the rules, given the gradients of each rank before the call.

    The `expected` of a rule is a dict for each rank. `steps` is how many times the run averages.
    """
    return [
        parameters_passed(GUIDE),
        not_synchronised(local, steps),
        all_zero,
        another_operation(local, GUIDE),
        without_fractions(GUIDE),
        wrong_scale,
        only_one_rank(GUIDE),
        one_ranks_own(local, GUIDE),
        over_a_part(local, GUIDE),
        digits_lost,
        clipped,
        in_other_places(GUIDE),
        only_some_parameters,
    ]


def not_synchronised(local: Sequence[Gradients], steps: int = 1) -> Rule:
    """Recognise gradients that are still each rank's own, perhaps divided by a number."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or seen.world_size < 2:
            return None
        factor = common_factor(list(seen), list(local))
        if factor is None or factor <= 0:
            return None
        divided = "" if _is(factor, 1) else f", divided by {1 / factor:.4g}"
        where = reduced_over_all(seen, steps * _size(local[0]))
        why = "Sum the gradients over the ranks and store the mean in `grad`."
        if where:
            why = (
                f"The sum of the all-reduce at {where} is in other tensors, such as copies: store "
                "the mean in the gradients themselves."
            )
        text = (
            f"Every rank still has only its own gradients{divided}, so the models would become "
            f"different. {why}"
        )
        return found("gradients-not-synchronised", range(seen.world_size), text, where)

    return rule


def all_zero(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise gradients that are all zero on every rank."""
    values, wanted = flat(list(seen)), flat(list(expected or ()))
    if values is None or wanted is None or values.any() or not wanted.any():
        return None
    text = (
        "Every gradient is zero on every rank. Average the gradients that the ranks had before the "
        "call."
    )
    return found("gradients-not-synchronised", range(seen.world_size), text, last_reduce(seen))


def wrong_scale(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise gradients that are a multiple of the mean, at least on some ranks."""
    if expected is None:
        return None
    size = seen.world_size
    wrong = [rank for rank in range(size) if not close(seen[rank], expected[rank])]
    factor = common_factor([seen[r] for r in wrong], [expected[r] for r in wrong])
    if factor is None or factor <= 0 or _is(factor, 1):  # 1: only small elements are wrong
        return None
    where = last_reduce(seen)
    at = f" The all-reduce is at {where}." if where else ""
    who = "Every gradient" if len(wrong) == size else f"On {ranks_text(wrong)}, every gradient"
    if _is(factor, size):
        text = (
            f"{who} is exactly {size} times the mean over the ranks: the gradients were summed "
            f"over {size} ranks. Either the sum is not divided by {size}, or the result is only in "
            "another variable: write it into `grad`."
        )
        return found("sum-not-mean", wrong, text + at, where)
    if _is(factor * size, 1):
        text = (
            f"{who} is {size} times too small: the sum over the {size} ranks was divided by {size} "
            "twice. Divide it once."
        )
        return found("divided-twice", wrong, text + at, where)
    divisor = size / factor
    if not _is(divisor, round(divisor)) and not _is(1 / divisor, round(1 / divisor)):
        text = f"{who} is {factor:.4g} times the mean over the ranks. {_norm_text(seen, wrong)}"
        return found("differs-from-single-process", wrong, text + at, where)
    made = f"divided by {divisor:.4g}" if divisor >= 1 else f"multiplied by {1 / divisor:.4g}"
    text = (
        f"{who} is {factor:.4g} times the mean: the sum was {made}. Divide it by the number of "
        f"ranks, {size}."
    )
    return found("sum-not-mean" if factor > 1 else "divided-twice", wrong, text + at, where)


def _norm_text(seen: Observation, ranks: Sequence[int]) -> str:
    """Return what to do; if the gradients were scaled to a round norm, name it."""
    vectors = [flat([seen[rank]]) for rank in ranks]
    norms = [float(norm(v)) for v in vectors if v is not None and v.size > 1]
    bound = float(f"{norms[0]:.1g}") if norms else 0.0
    if len(norms) < len(vectors) or not all(_is(one, bound) for one in norms):
        # The norm of a single number may be round by chance.
        return "Divide the sum over the ranks by the number of ranks, and by nothing else."
    return (
        f"The norm of all gradients together is {bound:g}: they were scaled to this norm, as in "
        "gradient clipping. Average the gradients without scaling them."
    )


def always_divided_by(
    world_size: int, again: Callable[[], tuple[Observation, Sequence[Gradients]]]
) -> Rule:
    """Return the rule for sums that are divided by the same number for any number of ranks.

    Args:
        world_size: the number of ranks of the run that is judged.
        again: runs a different number of ranks; returns their gradients after and before the call.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        divisor = None if expected is None else _divisor(seen, expected)
        if divisor is None or _is(divisor, 1) or _is(divisor, world_size):
            return None
        others, local = again()
        other = _divisor(others, [mean_of(local)] * others.world_size)
        if other is None or not _is(other, divisor):
            return None
        where = last_reduce(seen)
        text = (
            f"The sum over the ranks is divided by {divisor:.4g}, both on {seen.world_size} ranks "
            f"and on {others.world_size}. Divide by the number of ranks, which the process group "
            "reports."
        )
        return found("sum-not-mean", range(seen.world_size), text, where)

    return rule


def _divisor(seen: Observation, expected: Sequence[Gradients]) -> float | None:
    """Return the number by which the sum over the ranks was divided on every rank."""
    factor = common_factor(list(seen), list(expected))
    return seen.world_size / factor if factor is not None and factor > 0 else None


def digits_lost(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise gradients that are nearly the mean: they were rounded to a lower precision."""
    one, other = flat(list(seen)), flat(list(expected or ()))
    if one is None or other is None or one.shape != other.shape or not other.any():
        return None
    error = float(np.max(np.abs(one - other)) / np.max(np.abs(other)))
    if is_short(expected):
        return None
    if not 0 < error < NEARLY or not close(list(seen), list(expected), NEARLY_EACH / FLOAT32):
        return None
    text = (
        f"The mean over the ranks is accurate to only about {int(-np.log10(error))} digits: "
        "the gradients were rounded to a dtype of lower precision. Send and average each gradient "
        "in its own dtype."
    )
    return found("shape-mismatch", range(seen.world_size), text, last_reduce(seen))


def clipped(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise a mean whose elements beyond some bound were cut off."""
    one, other = flat(list(seen)), flat(list(expected or ()))
    if one is None or other is None or one.shape != other.shape or not one.any():
        return None
    bound = float(np.max(np.abs(one)))
    cut = np.count_nonzero(np.abs(other) > bound * (1 + NEARLY))
    if cut < 2 * seen.world_size or not close(one, np.clip(other, -bound, bound)):
        return None
    text = (
        f"The mean is right, but its elements were clipped to +-{bound:.4g}. Return the mean "
        "without clipping."
    )
    return found("differs-from-single-process", range(seen.world_size), text, last_reduce(seen))


def only_some_parameters(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise gradients that are right for some parameters and wrong for others."""
    wrong = wrong_names(seen, expected)
    if not wrong or len(wrong) == len(expected[0]):
        return None
    right = [name for name in expected[0] if name not in wrong]
    ranks = [r for r, e in enumerate(expected) if not close(seen[r], e)]
    rest = "Average the gradient of every trainable parameter."
    if seen.world_size > 1 and agree(seen, wrong):
        rest = "All ranks agree on the wrong values: treat all gradients in the same way."
    text = (
        f"The gradients of {listed(wrong)} did not become the mean over the ranks, but the "
        f"gradients of {listed(right)} did. {rest}"
    )
    return found("only-some-parameters", ranks, text, last_reduce(seen))


def found(code: str, ranks: Sequence[int], text: str, where: str | None = None) -> Diagnosis:
    """Return a diagnosis with the heading on gradients."""
    return Diagnosis(code, tuple(ranks), text, where, GUIDE)


def _size(gradients: Gradients) -> int:
    """Return the number of elements of a rank's gradients."""
    whole = flat([gradients])
    return 0 if whole is None else whole.size


def _is(factor: float, wanted: float) -> bool:
    return abs(factor - wanted) < 1e-3 * wanted


def wrong_names(seen: Observation, expected: Any) -> list[str]:
    """Return the parameters that are not right on every rank."""
    if expected is None or not all(isinstance(value, Mapping) for value in seen):
        return []
    return [
        name
        for name in expected[0]
        if any(not close(seen[r].get(name), e[name]) for r, e in enumerate(expected))
    ]


def agree(seen: Observation, names: Sequence[str]) -> bool:
    """Return whether all ranks have the same values under these names, NaN included."""
    first = [seen[0].get(name) for name in names]
    return all(close([value.get(name) for name in names], first) for value in seen)
