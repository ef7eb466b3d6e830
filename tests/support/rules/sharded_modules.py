"""Mistakes in a module of which each rank keeps a part: its values, gradients and messages.

The whole gradients are seen as what a step of size 1 subtracts from `full_state_dict()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.ranks.deadlocks.calls import bytes_of, numel
from gradsync.records import Collective, Diagnosis, Observation
from gradsync.testing.differences import describe_difference
from gradsync.testing.rules import Rule
from gradsync.testing.values import close
from gradsync.text import listed, ranks_text
from support.rules.buckets import mark_of

GUIDE = "Sharding the parameters"
Gradients = Mapping[str, Any]
GATHERS = ("all_gather", "broadcast", "gather", "scatter", "send")  # beginnings of names
REDUCES = ("all_reduce", "reduce")
HALF = 2.0**16  # roundings of float32, of which bfloat16 makes one
SMALL = 24  # elements; smaller messages are small parameters, counts and flags


def gradient_mistakes(local: Sequence[Gradients], tied: Gradients | None = None) -> list[Rule]:
    """Return the rules for whole gradients that are not the mean over the ranks.

    Args:
        local: by rank, the whole gradients of its own samples.
        tied: the mean gradients with only one use of each tied parameter.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        wrong = sorted(
            {n for rank, grads in enumerate(expected) for n in grads if _off(seen[rank], grads, n)}
        )
        code, text = _explained(seen, expected[0], wrong, local, tied)
        names = "every parameter" if len(wrong) == len(expected[0]) else listed(wrong)
        ranks = tuple(r for r, grads in enumerate(expected) if not close(seen[r], grads))
        return Diagnosis(code, ranks, f"The gradient of {names} is wrong: {text}", guide=GUIDE)

    return [rule]


def _off(value: Any, grads: Gradients, name: str) -> bool:
    return name not in value or not close(value[name], grads[name])


def _explained(
    seen: Observation,
    mean: Gradients,
    wrong: Sequence[str],
    local: Sequence[Gradients],
    tied: Gradients | None,
) -> tuple[str, str]:
    """Return the code and the text for the gradients with these names."""
    if any(name not in value for value in seen for name in wrong):
        return "missing-name", "full_state_dict does not have it."
    for pick, code, text in _candidates(mean, local, tied, len(wrong) == len(mean)):
        if all(
            close(value[n], np.asarray(pick(n, rank)))
            for rank, value in enumerate(seen)
            for n in wrong
        ):
            return code, text
    part = _partly(seen, mean, wrong)
    if part:
        return "only-some-parameters", (
            f"some of its elements are right, and {part} of {wrong[0]} are 0. With "
            f"{len(seen)} ranks, the size does not divide: no element may be left out."
        )
    if all(close(value[n], mean[n], HALF) for value in seen for n in wrong):
        return "wrong-dtype-sent", (
            "it is rounded as in half precision. Add up gradients in the parameters' own dtype."
        )
    found = [{n: value[n] for n in wrong} for value in seen]
    difference = describe_difference(found, [{n: mean[n] for n in wrong}] * len(seen))
    if tied is not None and not any(close(tied[n], mean[n]) for n in wrong):
        return "tied-parameters-wrong", f"it is not the sum over all uses{difference}."
    return "differs-from-single-process", f"it is not the mean over the ranks{difference}."


def _candidates(
    mean: Gradients, local: Sequence[Gradients], tied: Gradients | None, every: bool
) -> Iterator[tuple[Callable[[str, int], Any], str, str]]:
    """Yield wrong gradients by name and rank, with the code and the text of their mistake."""
    size = len(local)
    yield (
        lambda n, _: 0 * np.asarray(mean[n]),
        "does-not-learn" if every else "only-some-parameters",
        "it is 0. After finish(), each trainable parameter must have its gradient.",
    )
    if tied is not None:
        yield (
            lambda n, _: tied[n],
            "tied-parameters-wrong",
            "it contains only one of the two uses of the tied parameter. Add up the gradients of "
            "all uses.",
        )
    if size == 1:
        return
    yield (
        lambda n, _: size * np.asarray(mean[n]),
        "sum-not-mean",
        "it is the sum over the ranks. Divide by the number of ranks.",
    )
    yield (
        lambda n, _: np.asarray(mean[n]) / size,
        "divided-twice",
        f"it is {size} times too small. Divide by the number of ranks once.",
    )
    yield (
        lambda n, rank: local[rank][n],
        "gradients-not-synchronised",
        "each rank has that of its own samples. Average it over the ranks.",
    )
    for one in local:
        yield (
            lambda n, _, one=one: one[n],  # type: ignore[misc]
            "only-one-rank-has-it",
            "it is that of a single rank's samples, on every rank.",
        )
    yield (
        lambda n, _: _each_own_part([grads[n] for grads in local]),
        "gradients-not-synchronised",
        "each part is that of the samples of the rank that keeps it. Reduce-scatter the gradient: "
        "a rank's part is the mean over all ranks.",
    )


def _each_own_part(grads: Sequence[Any]) -> Any:
    """Return a gradient whose parts come from the ranks that keep them."""
    flat = [np.asarray(one).reshape(-1) for one in grads]
    size = -(-len(flat[0]) // len(flat))
    parts = [one[rank * size : (rank + 1) * size] for rank, one in enumerate(flat)]
    return np.concatenate(parts).reshape(np.shape(grads[0]))


def _partly(seen: Observation, mean: Gradients, wrong: Sequence[str]) -> int:
    """Return how many elements are 0 in the first wrong gradient, if all others are right."""
    value, right = np.asarray(seen[0][wrong[0]]), np.asarray(mean[wrong[0]])
    if value.shape != right.shape:
        return 0
    zero = (value == 0) & (right != 0)
    return int(zero.sum()) if np.allclose(value[~zero], right[~zero]) else 0


def absent_gradients(names: Sequence[Sequence[str]]) -> Diagnosis | None:
    """Judge the names, by rank, of trainable parameters without a gradient of their own kind."""
    ranks = tuple(rank for rank, some in enumerate(names) if some)
    if not ranks:
        return None
    text = (
        "After finish(), these trainable parameters have no gradient of their own shape and dtype: "
        f"{listed(names[ranks[0]])}. The optimizer needs one for each, sharded or not. If no rank "
        "has used a parameter, its gradient is zeros."
    )
    return Diagnosis("only-some-parameters", ranks, text, guide=GUIDE)


def gathers(calls: Sequence[Collective], rank: int) -> list[Collective]:
    """Return the calls by which a rank sends parts of parameters, in any way."""
    return [
        call
        for call in calls
        if call.op.startswith(GATHERS)
        and numel(call) >= SMALL
        and (call.root in (None, rank) or not call.op.startswith(("broadcast", "scatter")))
        and mark_of(call) is None
    ]


def reductions(calls: Sequence[Collective], small: int = SMALL) -> list[Collective]:
    """Return the calls that add up gradients of more than `small` elements."""
    return [
        call
        for call in calls
        if call.op.startswith(REDUCES) and volume(call) > small and mark_of(call) is None
    ]


def volume(call: Collective) -> int:
    """Return how many elements a rank gives to a collective that adds up."""
    recorded = numel(call)  # of a reduce_scatter: its output, which is one part
    return recorded * len(call.members) if call.op.startswith("reduce_scatter") else recorded


def gathered_too_often(calls: Sequence[Sequence[Collective]], limit: int) -> Diagnosis | None:
    """Judge the bytes of parameters that the ranks send in a step; `limit` is right."""
    sent = sum(
        bytes_of(call) for rank, own in enumerate(calls) for call in gathers(own, rank)
    ) / len(calls)
    if sent <= limit:
        return None
    text = (
        f"In a step, a rank sends {sent:,.0f} bytes of parameters on average, but {limit:,} are "
        "enough: each is gathered once in forward and once in backward, in parts of 1/N."
    )
    return Diagnosis("too-many-bytes", tuple(range(len(calls))), text, guide=GUIDE)


def reduced_whole(calls: Sequence[Collective], small: int) -> Diagnosis | None:
    """Recognise a gradient of which every rank gets all, by the calls of a rank in a step.

    All replicated parameters have `small` elements; each sharded one has more.
    """
    whole = [call for call in reductions(calls, small) if call.op.startswith("all_reduce")]
    if not whole:
        return None
    text = (
        f"The gradient of a sharded parameter is all-reduced ({numel(whole[0])} elements). Every "
        "rank gets all of it and keeps 1/N: a reduce-scatter sends half as much."
    )
    ranks = whole[0].members
    return Diagnosis("too-many-bytes", tuple(ranks), text, whole[0].where, GUIDE)


def reduced_late(calls: Sequence[Collective], small: int, limit: int) -> Diagnosis | None:
    """Judge the gradients that a rank reduces in finish(): at most the last one, of `limit`."""
    late = sum(map(volume, reductions(calls, small)))
    if late <= limit:
        return None
    text = (
        f"finish() reduces gradients of {late} elements. Reduce-scatter each gradient as soon as "
        "backward has computed it, so that it need not be kept whole until the end."
    )
    return Diagnosis("no-overlap", (), text, guide=GUIDE)


def wrong_dtypes(calls: Sequence[Collective], rank: int, low: str, own: str) -> Diagnosis | None:
    """Judge the dtypes in which a rank sends parameters (`low` is right) and gradients (`own`)."""
    for call in gathers(calls, rank):
        if call.dtype == own:
            text = (
                f"With compute_dtype={low}, a sharded parameter is sent as {own}. Convert this "
                f"rank's part to {low} before gathering: it halves the bytes."
            )
            return Diagnosis("wrong-dtype-sent", (rank,), text, call.where, "Half precision")
    for call in reductions(calls):
        if call.dtype == low:
            text = (
                f"Gradients are added up in {low}. Convert a gradient to the parameter's own "
                f"dtype, {own}, before the reduce-scatter: sums over ranks lose too many digits."
            )
            return Diagnosis("wrong-dtype-sent", (rank,), text, call.where, "Half precision")
    return None


def held_too_long(moments: Sequence[tuple[str, str, Sequence[str]]], rank: int) -> Diagnosis | None:
    """Judge which whole parameters were in memory at some moments.

    Args:
        moments: what was happening, the parameter of the layer in which (or ""), what was held.
        rank: the rank.
    """
    for what, layer, held in moments:
        others = [name for name in held if name != layer]
        if not others:
            continue
        where = f"the {what} of the layer with {layer}" if layer else what
        code = "gathered-too-long"
        advice = "Let go of it right after the submodule that owns it has computed."
        if what == "between forward and backward":
            advice = (
                "Autograd saves the whole parameter for backward. Save how to gather it again "
                "instead, for example with saved_tensors_hooks."
            )
        elif what == "after wrapping":
            code = "parameters-not-sharded"
            advice = "A part that is a view keeps the memory of the whole: copy it."
        elif what in ("forward", "backward"):
            advice = f"Gather each just before its own submodule computes. {advice}"
        text = (
            f"Rank {rank} has all of {listed(others)} in memory during {where}"
            if what in ("forward", "backward")
            else f"Rank {rank} has all of {listed(others)} in memory {where}"
        )
        return Diagnosis(code, (rank,), f"{text}. {advice}", guide=GUIDE)
    return None


def shares_too_large(
    kept: Sequence[int], whole: Mapping[str, Sequence[int]], small: int
) -> Diagnosis | None:
    """Judge how many elements the memory of `parameters()` has on each rank.

    Args:
        kept: by rank, the elements of the memory.
        whole: the shapes of the parameters with two or more dimensions.
        small: the elements of all others.
    """
    size = len(kept)
    elements = [int(np.prod(shape)) for shape in whole.values()]
    limit = sum(-(-n // size) for n in elements) + small
    over = [rank for rank, n in enumerate(kept) if n > limit]
    if not over:
        return None
    by_rows = sum(-(-shape[0] // size) * int(np.prod(shape[1:])) for shape in whole.values())
    whole_tensors = sum(
        int(np.prod(shape)) if len(shape) > 2 else -(-int(np.prod(shape)) // size)
        for shape in whole.values()
    )
    text = (
        f"The memory of parameters() has {listed([kept[rank] for rank in over])} elements on "
        f"{ranks_text(over)}, but at most {limit} are allowed on {size} ranks: `ceil(numel / N)` "
        f"of each parameter with two or more dimensions, and all {small} of the others. "
    )
    text += (
        "The parameters are split by rows, and their number does not divide. Flatten a parameter "
        "before you split it."
        if max(kept) == by_rows + small
        else "Those with three or more dimensions are kept whole. Shard them, too."
        if max(kept) == whole_tensors + small
        else "Each rank must keep its part only, in memory of its own: a view keeps the whole."
    )
    return Diagnosis("parameters-not-sharded", tuple(over), text, guide=GUIDE)
