"""Mistakes in averaging gradients. Values are {parameter name: gradient}, one dict a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import would_be
from gradsync.diagnose.exchanges import in_other_places, one_ranks_own
from gradsync.diagnose.values import FLOAT32, ROUNDINGS, array, close
from gradsync.diagnose.vectors import common_factor, flat
from gradsync.ranks.wording import ranks_text
from gradsync.records import Diagnosis, Observation

GUIDE = "Gradient aggregation"
Gradients = Mapping[str, Any]
AS_FLOAT64 = ROUNDINGS * 2.0**-52 / FLOAT32  # what float64 may be off by, in roundings of float32
NEARLY, NEARLY_EACH = 0.01, 0.1  # of the largest gradient of all, and of each: ranks' may cancel


def gradient_mistakes(local: Sequence[Gradients]) -> list[Rule]:
    """Return the rules, given the gradients that each rank had before.

    A rule is asked with `expected` as one dict a rank.
    """
    return [
        not_synchronised(local),
        wrong_scale,
        the_largest(local),
        only_one_rank,
        one_ranks_own(local, GUIDE),
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
        return _found("gradients-not-synchronised", range(seen.world_size), text)

    return rule


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
        return _found("sum-not-mean", wrong, text + at, where)
    if _is(factor * size, 1):
        text = (
            f"{who} is {size} times too small: the sum over {size} ranks was divided by {size} "
            "twice"
        )
        return _found("divided-twice", wrong, text + at, where)
    text = (
        f"{who} is {factor:.4g} times the mean: the sum was divided by {size / factor:.4g}, where "
        f"the number of ranks is {size}"
    )
    return _found("sum-not-mean" if factor > 1 else "divided-twice", wrong, text + at, where)


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
                return _found("sum-not-mean", range(seen.world_size), text, last_reduce(seen))
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
    return _found("only-one-rank-has-it", others, text, last_reduce(seen))


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
    return _found("shape-mismatch", range(seen.world_size), text, last_reduce(seen))


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
    return _found("differs-from-single-process", range(seen.world_size), text, last_reduce(seen))


def only_some_parameters(seen: Observation, expected: Any) -> Diagnosis | None:
    """Some parameters are right on every rank, others are not."""
    wrong = wrong_names(seen, expected)
    if not wrong or len(wrong) == len(expected[0]):
        return None
    right = [name for name in expected[0] if name not in wrong]
    ranks = [r for r, e in enumerate(expected) if not close(seen[r], e)]
    rest = "every trainable parameter has to take part"
    if seen.world_size > 1 and _agree(seen, wrong):
        rest = "all ranks agree there, and what is done to one gradient is to be done to each"
    text = (
        f"{', '.join(wrong)} did not end as the mean over the ranks, while {', '.join(right)} "
        f"did: {rest}"
    )
    return _found("only-some-parameters", ranks, text, last_reduce(seen))


def none_gradient_skipped(without: Sequence[int], name: str) -> Rule:
    """Ranks without a gradient stayed away from a collective, or were not counted."""
    ranks = f"{ranks_text(without)} had no gradient of {name}"

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        failure = seen.failure
        if failure is not None:
            if failure.status != "deadlock" or not _told_apart(seen, without):
                return None
            text = (
                f"{failure.diagnosis.explanation}. {ranks} and left it out, but the others wait "
                "all the same: who has nothing to add takes part with zeros"
            )
            return _found("none-gradient-skipped", without, text, failure.diagnosis.where)
        if wrong_names(seen, expected) != [name]:
            return None
        having = [r for r in range(seen.world_size) if r not in without]
        if all(close(seen[r].get(name), expected[r][name]) for r in having):
            text = (
                f"{ranks}, and did not end with the mean of the others': they need it too, or "
                "they step otherwise than the ranks that had one"
            )
            return _found("none-gradient-skipped", without, text, last_reduce(seen))
        if len(expected[0]) == 1:  # nothing was divided rightly: that may be another mistake
            return None
        by_those = [array(expected[r][name]) for r in having]
        share = len(having) / seen.world_size
        if all(
            mean is not None and close(seen[r].get(name), mean / share)
            for r, mean in zip(having, by_those, strict=True)
        ):
            text = (
                f"{ranks}, and the sum was divided by {len(having)}, the number of those that had "
                f"one: a missing gradient counts as zero, and there are {seen.world_size} ranks"
            )
            return _found("none-gradient-skipped", without, text, last_reduce(seen))
        if _agree(seen, [name]):
            text = (
                f"{ranks}, and the ranks agree on another mean than that of the others' and zeros: "
                "what those brought was not zero in every element. New memory is not, unless "
                "it is asked to be"
            )
            return _found("none-gradient-skipped", without, text, last_reduce(seen))
        return None

    return rule


def _told_apart(seen: Observation, without: Sequence[int]) -> bool:
    """Tell whether the ranks without a gradient stayed away, or brought something else last."""
    told = seen.failure.diagnosis if seen.failure else None
    if told and told.code == "deadlock-rank-missing" and set(told.ranks) == set(without):
        return True
    last = {r: c[-1].shapes for r in range(seen.world_size) if (c := seen.collectives(r))}
    lacking = {shapes for rank, shapes in last.items() if rank in without}
    having = {shapes for rank, shapes in last.items() if rank not in without}
    return len(lacking) == len(having) == 1 and lacking != having


def frozen_mistakes(stale: np.ndarray[Any, Any]) -> list[Rule]:
    """Return the rules for the gradients of a frozen layer, [weight's, whether bias has none].

    The weight's was stale (rank, out, in), the bias had none.
    """
    averaged = "the gradient of a frozen parameter was averaged"
    new = "a frozen parameter had no gradient and has one now"
    kept = ": frozen parameters are left alone"
    means = [[[stale.mean(0), none]] * len(stale) for none in (True, False)]
    return [
        *(would_be(mean, "frozen-touched", averaged + kept, GUIDE) for mean in means),
        would_be([[own, False] for own in stale], "frozen-touched", new + kept, GUIDE),
        _changed("the gradient of a frozen parameter was changed, or taken away" + kept),
    ]


def _changed(text: str) -> Rule:
    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        wrong = [rank for rank in range(seen.world_size) if not close(seen[rank], expected[rank])]
        return _found("frozen-touched", wrong, text)

    return rule


def last_reduce(seen: Observation) -> str | None:
    """Return the line of the last collective that added something up."""
    lines = [
        event.collective.where
        for event in seen.events
        if event.collective is not None and "reduce" in event.collective.op
    ]
    return lines[-1] if lines else None


def _found(code: str, ranks: Sequence[int], text: str, where: str | None = None) -> Diagnosis:
    return Diagnosis(code, tuple(ranks), f"{text} (GUIDELINES, {GUIDE})", where, GUIDE)


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


def _agree(seen: Observation, names: Sequence[str]) -> bool:
    """Tell whether all ranks have the same under these names, NaN included."""
    first = [seen[0].get(name) for name in names]
    return all(close([value.get(name) for name in names], first) for value in seen)
