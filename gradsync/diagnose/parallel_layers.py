"""Mistakes in layers whose weight lies in parts on the ranks, known by what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.diagnose import Rule
from gradsync.diagnose.confusions import last_line, would_be
from gradsync.diagnose.differences import told_difference
from gradsync.diagnose.values import array, close
from gradsync.records import Diagnosis, Observation
from gradsync.text import ranks_text

GUIDE = "Tensor parallelism"
GRADIENTS = {
    "inputs": "the gradient of the layer's input",
    "weight": "the gradient of this rank's part of the weight",
    "bias": "the gradient of this rank's bias",
}


def layer_gradient_mistakes(name: str, expected: Sequence[Any]) -> list[Rule]:
    """Return the rules for one gradient of a parallel layer.

    Args:
        name: "inputs", "weight" or "bias".
        expected: by rank, what it should be.
    """
    what, world_size = GRADIENTS[name], len(expected)

    def no_way_back(seen: Observation, _expected: Any) -> Diagnosis | None:
        lost = tuple(rank for rank, gradient in enumerate(seen) if gradient is None)
        if not lost:
            return None
        text = (
            f"{what} is None after backward: autograd knows no way back through the layer. What a "
            "collective writes has no history of its own, unless a function with a backward gives "
            "it one"
        )
        return Diagnosis("backward-not-reduced", lost, text, last_line(seen), GUIDE)

    other = unlike_linear(what)
    if world_size == 1:  # all is whole there: no factor tells anything
        return [no_way_back, other]
    many = would_be(
        [world_size * gradient for gradient in expected],
        "differs-from-single-process",
        f"{what} is {world_size} times what nn.Linear's would be: somewhere backward adds up over "
        "the ranks what every rank has whole already",
        GUIDE,
    )
    few = would_be(
        [gradient / world_size for gradient in expected],
        "differs-from-single-process",
        f"{what} is nn.Linear's divided by the number of ranks: the ranks share out features here, "
        "not samples, and nothing is a mean over ranks",
        GUIDE,
    )
    return [no_way_back, many, few, other]


def unlike_linear(what: str) -> Rule:
    """Say that something is not what nn.Linear makes, where no known mistake makes it."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        wrong = tuple(r for r, wanted in enumerate(expected) if not close(seen[r], wanted))
        text = (
            f"{ranks_text(wrong)}: {what} is not what "
            "nn.Linear makes with the full weight, or not this rank's part"
            f"{told_difference(list(seen), expected)}"
        )
        return Diagnosis("differs-from-single-process", wrong, text, last_line(seen), GUIDE)

    return rule


def column_input_mistake(upstream: Any, weight: Any, world_size: int) -> Rule:
    """Know an input's gradient that is each rank's own part of the sum.

    Args:
        upstream: the gradient of all outputs.
        weight: the full one.
        world_size: the number of ranks.
    """
    pieces = zip(upstream.chunk(world_size, -1), weight.chunk(world_size, 0), strict=True)
    return would_be(
        [gradient @ rows for gradient, rows in pieces],
        "backward-not-reduced",
        "each rank's gradient of the input is what its own rows of the weight make of it: every "
        "rank has used the input, and the input's gradient is the sum over all of them",
        GUIDE,
    )


def row_input_mistake(whole: Any, world_size: int) -> Rule:
    """Know a gradient of the whole input that holds this rank's slice alone."""
    padded = [whole * 0 for _ in range(world_size)]
    for rank, part in enumerate(whole.chunk(world_size, -1)):
        padded[rank].chunk(world_size, -1)[rank].copy_(part)
    return would_be(
        padded,
        "backward-not-reduced",
        "each rank's gradient of the whole input is zero but for the slice that the rank itself "
        "uses: the other slices' gradients are on the other ranks",
        GUIDE,
    )


def row_bias_mistake(whole: Any, world_size: int) -> Rule:
    """Know a bias that every rank adds a fraction of: its gradient is that fraction too."""
    return would_be(
        [whole / world_size] * world_size,
        "bias-added-per-rank",
        "the bias's gradient is nn.Linear's divided by the number of ranks: every rank adds a "
        "fraction of the bias to its summand, and the bias learns that much slower. Add it once, "
        "when the sum is there",
        GUIDE,
    )


def bias_left_behind(seen: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    """Some ranks have a bias that gets no gradient, beside ranks whose bias gets one.

    A rank that has no bias of its own, since another one adds it for all, is none of these.

    Args:
        seen: by rank, the gradient of its "bias", and whether it `trains_bias` at all.
    """
    idle = [rank for rank, kept in enumerate(seen) if kept["trains_bias"] and is_idle(kept)]
    used = [rank for rank, kept in enumerate(seen) if not is_idle(kept)]
    if not idle or not used:
        return None
    text = (
        f"the bias gets a gradient on {ranks_text(used)} and none on {ranks_text(idle)}, which do "
        "not add theirs. An optimizer moves it on some ranks only, so the ranks no longer have the "
        "same bias after a step. Add the bias to the sum on every rank: its gradient is then the "
        f"whole one everywhere, as nn.Linear's"
    )
    return Diagnosis("only-one-rank-has-it", tuple(idle), text, guide=GUIDE)


def is_idle(kept: Mapping[str, Any]) -> bool:
    """Tell whether a rank's bias got no gradient, or one of zeros."""
    return kept["bias"] is None or not bool(kept["bias"].any())


def row_output_mistakes(drawn: Mapping[str, Any], outputs: Any, world_size: int) -> list[Rule]:
    """Return the rules for outputs that are not the sum of all products and one bias.

    Args:
        drawn: the full "inputs", "weight" and "bias".
        outputs: what they should be on every rank.
        world_size: the number of ranks.
    """
    if world_size == 1:
        return []
    pieces = (drawn[name].chunk(world_size, -1) for name in ("inputs", "weight"))
    products = [inputs @ columns.T for inputs, columns in zip(*pieces, strict=True)]
    bias = drawn["bias"]
    alone = (
        "every rank returns the product of its own columns alone: the outputs are the sum of all "
        "ranks' products"
    )
    often = would_be(
        [outputs + (world_size - 1) * bias] * world_size,
        "bias-added-per-rank",
        f"the bias is in the outputs {world_size} times: every rank adds it to its own product, "
        "and the sum over the ranks sums the biases too",
        GUIDE,
    )
    mean = would_be(
        [(outputs - bias) / world_size + bias] * world_size,
        "differs-from-single-process",
        "the outputs are the mean of the ranks' products: their sum is wanted",
        GUIDE,
    )
    biased = [product + bias for product in products]
    lonely = would_be(
        [outputs] + [outputs - bias] * (world_size - 1),
        "only-one-rank-has-it",
        "rank 0 alone adds the bias to its outputs: they are the same on every rank, so each rank "
        "adds the bias to the sum",
        GUIDE,
    )
    return [
        often,
        lonely,
        mean,
        would_be(products, "differs-from-single-process", alone, GUIDE),
        would_be(biased, "differs-from-single-process", alone, GUIDE),
    ]


def diagnose_refusals(seen: Sequence[Sequence[str | None]], name: str) -> Diagnosis | None:
    """Return what is wrong with which layers can be made and which can not.

    Args:
        seen: by rank, how making each of several layers ended: in an error, or None. The last
            layer's features divide evenly, those of the others don't.
        name: of the argument that has to divide.
    """
    accepted = tuple(rank for rank, told in enumerate(seen) if None in told[:-1])
    others = [text for told in seen for text in told[:-1] if text and text[:10] != "ValueError"]
    if accepted or others:
        text = (
            f"{name} that {len(seen)} ranks can't split evenly gave "
            f"{'a layer, and no error' if accepted else others[0]}: a ValueError is wanted"
        )
        ranks = accepted or tuple(range(len(seen)))
        return Diagnosis("bad-arguments-accepted", ranks, text, guide=GUIDE)
    refused = [(rank, told[-1]) for rank, told in enumerate(seen) if told[-1] is not None]
    if not refused:
        return None
    text = (
        f"a layer whose {name} divide evenly gave {refused[0][1]}: those of the other side are not "
        "split, and need not divide"
    )
    ranks = tuple(rank for rank, _ in refused)
    return Diagnosis("differs-from-single-process", ranks, text, guide=GUIDE)


def diagnose_gathering(seen: Sequence[Mapping[str, Any]], features: int) -> Diagnosis | None:
    """Return the diagnosis if "outputs" that should be gathered have not all `features`."""
    outputs = [array(value["outputs"]) for value in seen]
    ranks = tuple(r for r, o in enumerate(outputs) if o is None or o.shape[-1:] != (features,))
    if not ranks:
        return None
    text = (
        "with gather_output a new layer does not return all its outputs: each rank still has its "
        "own part of them alone, or another number"
    )
    return Diagnosis("parameters-not-gathered", ranks, text, guide=GUIDE)


def diagnose_beginning(seen: Sequence[Mapping[str, Any]], why: str) -> Diagnosis | None:
    """Return what is wrong with layers that were just made, each rank under a seed of its own.

    Args:
        seen: by rank, the layer's "weight", and the "outputs" for one and the same input.
        why: what such outputs take to be the same on every rank.
    """
    code = "differs-from-single-process"
    unset = tuple(rank for rank, value in enumerate(seen) if _is_unset(value))
    if unset:
        text = (
            f"{ranks_text(unset)}: a new layer's weight or bias is memory that was never written "
            "to, or the weight has few different numbers. It begins as nn.Linear's does, with "
            "random numbers, or the layer can't be trained unless another's weight is loaded"
        )
        return Diagnosis(code, unset, text, guide=GUIDE)
    if all(close(value["outputs"], seen[0]["outputs"]) for value in seen):
        return None
    text = (
        "a new layer returns other whole outputs on one rank than on another, for the same input, "
        f"where the ranks have different seeds. {why}"
    )
    return Diagnosis(code, tuple(range(len(seen))), text, guide=GUIDE)


def _is_unset(value: Mapping[str, Any]) -> bool:
    weight, outputs = array(value["weight"]), array(value["outputs"])
    if weight is None or outputs is None or not np.isfinite(outputs).all():
        return True
    return len(np.unique(weight)) <= weight.size / 2  # random numbers are different ones
