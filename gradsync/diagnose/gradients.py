"""Mistakes in averaging gradients. Values are {parameter name: gradient}, one dict a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.linalg import norm

from gradsync.diagnose import Rule
from gradsync.diagnose.exchanges import in_other_places, one_ranks_own, over_a_part
from gradsync.diagnose.values import FLOAT32, ROUNDINGS, close
from gradsync.diagnose.vectors import common_factor, flat
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text

GUIDE = "Gradient aggregation"
Gradients = Mapping[str, Any]
AS_FLOAT64 = ROUNDINGS * 2.0**-52 / FLOAT32  # what float64 may be off by, in roundings of float32
NEARLY, NEARLY_EACH = 0.01, 0.1  # of the largest gradient of all, and of each: ranks' may cancel


def mean_of(local: Sequence[Gradients]) -> dict[str, Any]:
    """Return the mean over ranks of what each has."""
    return {name: sum(grads[name] for grads in local) / len(local) for name in local[0]}


def gradient_mistakes(local: Sequence[Gradients]) -> list[Rule]:
    """Return the rules, given the gradients that each rank had before.

    A rule is asked with `expected` as one dict a rank.
    """
    return [
        not_synchronised(local),
        all_zero,
        wrong_scale,
        the_largest(local),
        only_one_rank,
        one_ranks_own(local, GUIDE),
        over_a_part(local, GUIDE),
        digits_lost,
        clipped,
        in_other_places(GUIDE),
        only_some_parameters,
    ]


def not_synchronised(local: Sequence[Gradients]) -> Rule:
    """Every rank still has its own gradients, divided perhaps."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or seen.world_size < 2:
            return None
        factor = common_factor(list(seen), list(local))
        if factor is None or factor <= 0:
            return None
        divided = "" if _is(factor, 1) else f", only {1 / factor:.4g} times smaller"
        text = (
            f"every rank still has its own gradients{divided}: what the ranks had was not added "
            "up, so each would step in a direction of its own"
        )
        return found("gradients-not-synchronised", range(seen.world_size), text)

    return rule


def all_zero(seen: Observation, expected: Any) -> Diagnosis | None:
    """No rank has a gradient left that is not zero."""
    values, wanted = flat(list(seen)), flat(list(expected or ()))
    if values is None or wanted is None or values.any() or not wanted.any():
        return None
    text = "every gradient is zero on every rank: what the ranks had before is lost"
    return found("gradients-not-synchronised", range(seen.world_size), text, last_reduce(seen))


def wrong_scale(seen: Observation, expected: Any) -> Diagnosis | None:
    """Every gradient is the same multiple of the mean, on some ranks at least."""
    if expected is None:
        return None
    size = seen.world_size
    wrong = [rank for rank in range(size) if not close(seen[rank], expected[rank])]
    factor = common_factor([seen[r] for r in wrong], [expected[r] for r in wrong])
    if factor is None or factor <= 0 or _is(factor, 1):  # 1: what is wrong is small beside the rest
        return None
    where = last_reduce(seen)
    at = f". The all-reduce is at {where}" if where else ""
    who = "every gradient" if len(wrong) == size else f"on {ranks_text(wrong)} every gradient"
    if _is(factor, size):
        text = (
            f"{who} is exactly {size} times the mean of the ranks': you summed over {size} ranks "
            "and did not divide"
        )
        return found("sum-not-mean", wrong, text + at, where)
    if _is(factor * size, 1):
        text = (
            f"{who} is {size} times too small: the sum over {size} ranks was divided by {size} "
            "twice"
        )
        return found("divided-twice", wrong, text + at, where)
    divisor = size / factor
    if factor < 1 and not _is(divisor, round(divisor)):
        text = f"{who} is {factor:.4g} times the mean of the ranks'{_norm_text(seen, wrong)}"
        return found("differs-from-single-process", wrong, text + at, where)
    made = f"divided by {divisor:.4g}" if divisor >= 1 else f"multiplied by {1 / divisor:.4g}"
    text = (
        f"{who} is {factor:.4g} times the mean: the sum was {made}, and it is to be divided by the "
        f"number of ranks, {size}"
    )
    return found("sum-not-mean" if factor > 1 else "divided-twice", wrong, text + at, where)


def _norm_text(seen: Observation, ranks: Sequence[int]) -> str:
    """Return what to say of gradients that were scaled to a round norm; "" of any others."""
    norms = [0.0 if (v := flat([seen[rank]])) is None else float(norm(v)) for rank in ranks]
    bound = float(f"{norms[0]:.1g}")
    if not all(_is(one, bound) for one in norms):
        return ""
    return (
        f", and the norm of all of them together is {bound:g}: they were scaled to that, as "
        "clipping does, which is no part of an average"
    )


def always_divided_by(
    world_size: int, again: Callable[[], tuple[Observation, Sequence[Gradients]]]
) -> Rule:
    """Return the rule for sums that are divided by one and the same number, however many the ranks.

    Args:
        world_size: the number of ranks that the rule is asked about.
        again: has another number of ranks average; what they end with, and what each had.
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
            f"the sum over the ranks is divided by {divisor:.4g}, on {seen.world_size} ranks as "
            f"well as on {others.world_size}: the mean needs the number of ranks that there are, "
            "so ask the process group for it"
        )
        return found("sum-not-mean", range(seen.world_size), text, where)

    return rule


def _divisor(seen: Observation, expected: Sequence[Gradients]) -> float | None:
    """Return the number that the sum over the ranks was divided by on every rank."""
    factor = common_factor(list(seen), list(expected))
    return seen.world_size / factor if factor is not None and factor > 0 else None


def the_largest(local: Sequence[Gradients]) -> Rule:
    """Every element is the largest of the ranks', the smallest, or their product."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        parts = [part for gradients in local if (part := flat([gradients])) is not None]
        values = [flat([value]) for value in seen]
        if expected is None or not 1 < len(parts) == len(local):
            return None
        for name, extreme in (("largest", np.max), ("smallest", np.min), ("product", np.prod)):
            one = extreme(np.stack(parts), axis=0)
            divided = close(values, [one / len(parts)] * len(parts))
            if divided or close(values, [one] * len(parts)):
                by = f", divided by {len(parts)}" if divided else ""
                text = (
                    f"every element is the {name} of the ranks'{by}: an all-reduce can do more "
                    "than add up, and here it has to add up"
                )
                return found("sum-not-mean", range(seen.world_size), text, last_reduce(seen))
        return None

    return rule


def only_one_rank(seen: Observation, expected: Any) -> Diagnosis | None:
    """One rank ended with the mean, the others without."""
    if expected is None or seen.world_size < 2:
        return None
    right = [rank for rank in range(seen.world_size) if close(seen[rank], expected[rank])]
    if len(right) != 1:
        return None
    others = [rank for rank in range(seen.world_size) if rank not in right]
    text = (
        f"rank {right[0]} alone ends with the mean of the gradients: the other ranks need it as "
        "well, or they step in another direction"
    )
    return found("only-one-rank-has-it", others, text, last_reduce(seen))


def digits_lost(seen: Observation, expected: Any) -> Diagnosis | None:
    """Every gradient is nearly the mean: it was rounded on the way."""
    one, other = flat(list(seen)), flat(list(expected or ()))
    if one is None or other is None or one.shape != other.shape or not other.any():
        return None
    error = float(np.max(np.abs(one - other)) / np.max(np.abs(other)))
    if not 0 < error < NEARLY or not close(list(seen), list(expected), NEARLY_EACH / FLOAT32):
        return None
    text = (
        f"the mean over the ranks is right to about {int(-np.log10(error))} digits only: gradients "
        "were rounded to a narrower dtype on the way. Each is to travel, and be averaged, in its "
        "own dtype"
    )
    return found("shape-mismatch", range(seen.world_size), text, last_reduce(seen))


def clipped(seen: Observation, expected: Any) -> Diagnosis | None:
    """Every rank has the mean, with what exceeds some bound cut off there."""
    one, other = flat(list(seen)), flat(list(expected or ()))
    if one is None or other is None or one.shape != other.shape or not one.any():
        return None
    bound = float(np.max(np.abs(one)))
    cut = np.count_nonzero(np.abs(other) > bound * (1 + NEARLY))
    if cut < 2 * seen.world_size or not close(one, np.clip(other, -bound, bound)):
        return None
    text = (
        f"every rank has the mean, but no element is larger than {bound:.4g}, where the mean has "
        "larger ones: they were cut off there, which is no part of an average"
    )
    return found("differs-from-single-process", range(seen.world_size), text, last_reduce(seen))


def only_some_parameters(seen: Observation, expected: Any) -> Diagnosis | None:
    """Some parameters are right on every rank, others are not."""
    wrong = wrong_names(seen, expected)
    if not wrong or len(wrong) == len(expected[0]):
        return None
    right = [name for name in expected[0] if name not in wrong]
    ranks = [r for r, e in enumerate(expected) if not close(seen[r], e)]
    rest = "every trainable parameter has to take part"
    if seen.world_size > 1 and agree(seen, wrong):
        rest = "all ranks agree there, and what is done to one gradient is to be done to each"
    text = (
        f"{', '.join(wrong)} did not end as the mean over the ranks, while {', '.join(right)} "
        f"did: {rest}"
    )
    return found("only-some-parameters", ranks, text, last_reduce(seen))


def parameters_averaged(names: Sequence[str], guide: str) -> Rule:
    """Return the rule for ranks that add up parameters of these names, and not their gradients."""

    def rule(seen: Observation, _expected: Any) -> Diagnosis | None:
        calls = [c for c in seen.collectives(0) if "reduce" in c.op and c.label in names]
        if not calls:
            return None
        text = (
            f"the ranks average their parameters ({calls[0].label}, for one) and not their "
            "gradients: each then steps by its own gradients, and the optimizer's state differs "
            "from rank to rank. The mean of the gradients comes before the step"
        )
        ranks = tuple(range(seen.world_size))
        return Diagnosis("gradients-not-synchronised", ranks, text, calls[0].where, guide)

    return rule


def last_reduce(seen: Observation) -> str | None:
    """Return the line of the last collective that added something up."""
    lines = [
        event.collective.where
        for event in seen.events
        if event.collective is not None and "reduce" in event.collective.op
    ]
    return lines[-1] if lines else None


def found(code: str, ranks: Sequence[int], text: str, where: str | None = None) -> Diagnosis:
    """Return a diagnosis that names the heading on gradients."""
    return Diagnosis(code, tuple(ranks), f"{text}", where, GUIDE)


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
    """Tell whether all ranks have the same under these names, NaN included."""
    first = [seen[0].get(name) for name in names]
    return all(close([value.get(name) for name in names], first) for value in seen)
