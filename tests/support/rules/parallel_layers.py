"""Mistakes in layers whose weight is split over the ranks, recognised by their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gradsync.records import Diagnosis, Observation
from gradsync.testing.differences import describe_difference
from gradsync.testing.rules import Rule
from gradsync.testing.values import array, close
from gradsync.text import ranks_text
from support.rules.wrong_results import ends_with, last_line

GUIDE = "Tensor parallelism"
GRADIENTS = {
    "inputs": "The gradient of the layer's input",
    "weight": "The gradient of this rank's part of the weight",
    "bias": "The gradient of this rank's bias",
}


SENDS_WEIGHTS = (
    "They do so for one sample, although a rank's part of the weight has only {} bytes. Send "
    "activations and their gradients, never parts of the weight."
)
PASS_ON = (
    "The sum in forward is right; its backward must pass the gradient on unchanged. Autograd's own "
    "versions, such as torch.distributed.nn.functional.all_reduce, also sum in backward."
)
SPLIT_BACK = (
    "Where forward gathers the outputs, backward must only take this rank's slice of the gradient. "
    "Autograd's own versions, such as torch.distributed.nn.functional.all_gather, also sum in "
    "backward."
)
GATHERED = "Gather the parts in the order of the ranks, on every rank."
SUMMED = (
    "A parameter that is complete on every rank, such as a bias added to a sum, must start with "
    "the same values on all ranks."
)


def layer_gradient_mistakes(
    name: str, expected: Sequence[Any], *, gathers: bool = False
) -> list[Rule]:
    """Return the rules for one gradient of a parallel layer.

    Args:
        name: "inputs", "weight" or "bias".
        expected: by rank, the right gradient.
        gathers: whether forward gathers the outputs, instead of summing products.
    """
    what, world_size = GRADIENTS[name], len(expected)

    def no_gradient(seen: Observation, _expected: Any) -> Diagnosis | None:
        lost = tuple(rank for rank, gradient in enumerate(seen) if gradient is None)
        if not lost:
            return None
        text = (
            f"{what} is None after backward: autograd does not record collectives, so the layer's "
            "output has no history. Put the collective into a torch.autograd.Function with a "
            "backward."
        )
        return Diagnosis("backward-not-reduced", lost, text, last_line(seen), GUIDE)

    other = unlike_linear(what)
    if world_size == 1:  # nothing is split: a factor of 1 would match right gradients
        return [no_gradient, other]
    advice = SPLIT_BACK if gathers else PASS_ON
    many = _summed_in_backward(what, [world_size * gradient for gradient in expected], advice)
    few = ends_with(
        [gradient / world_size for gradient in expected],
        "differs-from-single-process",
        f"{what} is the gradient in nn.Linear divided by the number of ranks. Here the ranks split "
        "the features, not the samples, so no gradient is a mean over the ranks. Remove the "
        "division.",
        GUIDE,
    )
    first = ends_with(
        [expected[0]] * world_size,
        "same-shard-on-every-rank",
        f"{what} is that of rank 0's part on every rank. Where forward gathers the outputs, "
        "backward must take this rank's slice of the gradient.",
        GUIDE,
    )
    return [no_gradient, many, few, *([first] if gathers else []), other]


def _summed_in_backward(what: str, wrong: Sequence[Any], advice: str) -> Rule:
    """Return the rule for gradients that are summed over the ranks although each is complete."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None or not close(list(seen), list(wrong)):
            return None
        lines = [e.collective.where for e in seen.events if e.rank == 0 and e.collective]
        *earlier, last = lines or [None]
        at = f", at {last}" if last and last not in earlier else ""
        text = (
            f"{what} is {seen.world_size} times the gradient in nn.Linear: backward sums it over "
            f"the ranks{at}, but every rank already has the complete gradient. {advice} Write a "
            "torch.autograd.Function."
        )
        where = last if at else None
        ranks = tuple(range(seen.world_size))
        return Diagnosis("differs-from-single-process", ranks, text, where, GUIDE)

    return rule


def unlike_linear(what: str) -> Rule:
    """Return the rule that reports a difference from nn.Linear, whatever the mistake is.

    Args:
        what: the subject, in the singular and with a capital, such as "The layer's output".
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        wrong = tuple(r for r, wanted in enumerate(expected) if not close(seen[r], wanted))
        text = (
            f"{what} is wrong on {ranks_text(wrong)}: it must equal the value in nn.Linear with "
            "the full weight and bias, or this rank's part of that value"
            f"{describe_difference(list(seen), expected)}."
        )
        return Diagnosis("differs-from-single-process", wrong, text, last_line(seen), GUIDE)

    return rule


def column_input_mistake(upstream: Any, weight: Any, world_size: int) -> Rule:
    """Return the rule for an input's gradient that was not summed over the ranks.

    Args:
        upstream: the gradient of all outputs.
        weight: the full weight.
        world_size: the number of ranks.
    """
    pieces = zip(upstream.chunk(world_size, -1), weight.chunk(world_size, 0), strict=True)
    return ends_with(
        [gradient @ rows for gradient, rows in pieces],
        "backward-not-reduced",
        "Each rank's gradient of the input is computed from only its own rows of the weight. Every "
        "rank uses the input, so its gradient is the sum over all ranks. Sum it in backward.",
        GUIDE,
    )


def row_input_mistake(whole: Any, world_size: int) -> Rule:
    """Return the rule for a gradient of the full input that has only this rank's slice."""
    padded = [whole * 0 for _ in range(world_size)]
    for rank, part in enumerate(whole.chunk(world_size, -1)):
        padded[rank].chunk(world_size, -1)[rank].copy_(part)
    return ends_with(
        padded,
        "backward-not-reduced",
        "Each rank's gradient of the full input is zero outside of the rank's own slice. The "
        "gradients of the other slices are on the other ranks. Gather them in backward.",
        GUIDE,
    )


def row_bias_mistake(whole: Any, world_size: int) -> Rule:
    """Return the rule for ranks that each add a fraction of the bias."""
    return ends_with(
        [whole / world_size] * world_size,
        "bias-added-per-rank",
        "The gradient of the bias is the gradient in nn.Linear divided by the number of ranks: "
        "every rank adds a fraction of the bias to its own product. The bias then changes too "
        "slowly. Add the full bias once, after the sum over the ranks.",
        GUIDE,
    )


def bias_left_behind(seen: Sequence[Mapping[str, Any]]) -> Diagnosis | None:
    """Recognise ranks whose bias gets no gradient, while the bias of other ranks gets one.

    A rank without a bias is not judged, because another rank may add the bias for all.

    Args:
        seen: by rank, the gradient of its "bias", and whether it `trains_bias` at all.
    """
    idle = [rank for rank, kept in enumerate(seen) if kept["trains_bias"] and is_idle(kept)]
    used = [rank for rank, kept in enumerate(seen) if not is_idle(kept)]
    if not idle or not used:
        return None
    text = (
        f"The bias gets a gradient on {ranks_text(used)}, but not on {ranks_text(idle)}, where it "
        "is not added to the outputs. An optimizer step changes it on some ranks only, so the "
        "ranks then have different biases. Add the bias on every rank, after the sum: its "
        "gradient is then the same as in nn.Linear on every rank."
    )
    return Diagnosis("only-one-rank-has-it", tuple(idle), text, guide=GUIDE)


def is_idle(kept: Mapping[str, Any]) -> bool:
    """Return whether a rank's bias got no gradient, or only zeros."""
    return kept["bias"] is None or not bool(kept["bias"].any())


def row_output_mistakes(drawn: Mapping[str, Any], outputs: Any, world_size: int) -> list[Rule]:
    """Return the rules for outputs that are not the sum of all products and one bias.

    Args:
        drawn: the full "inputs", "weight" and "bias".
        outputs: the right outputs, which are the same on every rank.
        world_size: the number of ranks.
    """
    if world_size == 1:
        return []
    pieces = (drawn[name].chunk(world_size, -1) for name in ("inputs", "weight"))
    products = [inputs @ columns.T for inputs, columns in zip(*pieces, strict=True)]
    bias = drawn["bias"]
    alone = (
        "Every rank returns the product of only its own columns. The outputs are the sum of the "
        "products of all ranks. Sum the products over the ranks in forward."
    )
    often = ends_with(
        [outputs + (world_size - 1) * bias] * world_size,
        "bias-added-per-rank",
        f"The outputs contain the bias {world_size} times: every rank adds it to its own product, "
        "and the sum over the ranks adds up the biases too. Add the bias once, after the sum.",
        GUIDE,
    )
    mean = ends_with(
        [(outputs - bias) / world_size + bias] * world_size,
        "differs-from-single-process",
        "The outputs are the mean of the ranks' products. They must be the sum. Do not divide by "
        "the number of ranks.",
        GUIDE,
    )
    part = ends_with(
        [outputs - bias + bias / world_size] * world_size,
        "differs-from-single-process",
        f"The outputs contain only 1/{world_size} of the bias. Add the full bias once, after the "
        "sum.",
        GUIDE,
    )
    biased = [product + bias for product in products]
    lonely = ends_with(
        [outputs] + [outputs - bias] * (world_size - 1),
        "only-one-rank-has-it",
        "Only the outputs of rank 0 contain the bias. The outputs must be the same on every rank. "
        "Add the bias on every rank, after the sum.",
        GUIDE,
    )
    return [
        often,
        lonely,
        mean,
        part,
        ends_with(products, "differs-from-single-process", alone, GUIDE),
        ends_with(biased, "differs-from-single-process", alone, GUIDE),
    ]


def diagnose_refusals(seen: Sequence[Sequence[str | None]], name: str) -> Diagnosis | None:
    """Return the diagnosis if layers that can't be split are accepted, or others are refused.

    Args:
        seen: by rank, the error raised by the constructor of each of several layers, or None. Only
            the last layer's features can be split evenly.
        name: the argument that must be a multiple of the number of ranks.
    """
    accepted = tuple(rank for rank, errors in enumerate(seen) if None in errors[:-1])
    others = [text for errors in seen for text in errors[:-1] if text and text[:10] != "ValueError"]
    if accepted or others:
        text = (
            f"With {name} that {len(seen)} ranks can't split evenly, the constructor raised "
            f"{'no error' if accepted else f'another error ({others[0]})'}. It must raise a "
            "ValueError."
        )
        ranks = accepted or tuple(range(len(seen)))
        return Diagnosis("bad-arguments-accepted", ranks, text, guide=GUIDE)
    refused = [(rank, errors[-1]) for rank, errors in enumerate(seen) if errors[-1] is not None]
    if not refused:
        return None
    text = (
        f"With {name} that {len(seen)} ranks can split evenly, the constructor raised an error "
        f"({refused[0][1]}). Only {name} is split; the other number of features can have any value."
    )
    ranks = tuple(rank for rank, _ in refused)
    return Diagnosis("differs-from-single-process", ranks, text, guide=GUIDE)


def diagnose_gathering(seen: Sequence[Mapping[str, Any]], features: int) -> Diagnosis | None:
    """Return the diagnosis if the "outputs" of a rank do not have all `features`."""
    outputs = [array(value["outputs"]) for value in seen]
    ranks = tuple(r for r, o in enumerate(outputs) if o is None or o.shape[-1:] != (features,))
    if not ranks:
        return None
    text = (
        f"With gather_output=True, a new layer does not return {features} outputs on "
        f"{ranks_text(ranks)}. Each rank must return the outputs of all ranks."
    )
    return Diagnosis("parameters-not-gathered", ranks, text, guide=GUIDE)


def diagnose_beginning(seen: Sequence[Mapping[str, Any]], why: str) -> Diagnosis | None:
    """Return the diagnosis of new layers, created with a different seed on each rank.

    Args:
        seen: by rank, the layer's "weight", and its "outputs" for the same input on all ranks.
        why: a sentence on what makes the outputs the same on every rank.
    """
    code = "differs-from-single-process"
    unset = tuple(rank for rank, value in enumerate(seen) if _is_unset(value))
    if unset:
        text = (
            f"On {ranks_text(unset)}, the weight or bias of a new layer is uninitialised memory, "
            "or the weight has few different numbers. A new layer must have random weights, as "
            "nn.Linear has: without them it can't be trained before other weights are loaded."
        )
        return Diagnosis(code, unset, text, guide=GUIDE)
    if all(close(value["outputs"], seen[0]["outputs"]) for value in seen):
        return None
    text = (
        "If the ranks have different seeds, a new layer returns different outputs on the ranks "
        f"for the same input. {why}"
    )
    return Diagnosis(code, tuple(range(len(seen))), text, guide=GUIDE)


def _is_unset(value: Mapping[str, Any]) -> bool:
    weight, outputs = array(value["weight"]), array(value["outputs"])
    if weight is None or outputs is None or not np.isfinite(outputs).all():
        return True
    return len(np.unique(weight)) <= weight.size / 2  # random numbers rarely repeat


AFTER_LOADING = {  # what probe_objects checks: the code and the message if it is False
    "loaded": (
        "differs-from-single-process",
        "load_full_linear did not change the layer's parameters. Copy this rank's part into them.",
    ),
    "same": (
        "tensors-replaced",
        "load_full_linear replaced the layer's parameters with new objects. An optimizer created "
        "earlier would train the old ones. Copy into the existing parameters.",
    ),
    "leaves": (
        "frozen-touched",
        "After load_full_linear, a parameter of the layer has a gradient, or is not a leaf of the "
        "autograd graph. Copy without gradient tracking.",
    ),
    "keeps": (
        "frozen-touched",
        "load_full_linear changed `requires_grad` of a parameter. A frozen parameter must stay "
        "frozen, and a trainable one trainable.",
    ),
}


def loaded_wrongly(seen: Sequence[Mapping[str, Any]], full: Mapping[str, Any]) -> Diagnosis | None:
    """Recognise layers whose parameters were replaced or changed in other ways than their values.

    Args:
        seen: by rank, what `support.probes.parallel_layers.probe_loading` returns.
        full: the tensors that were loaded.
    """
    for name, (code, text) in AFTER_LOADING.items():
        ranks = tuple(rank for rank, value in enumerate(seen) if not value[name])
        if ranks:
            return Diagnosis(code, ranks, text, guide=GUIDE)
    if all(close(value["given"], full) for value in seen):
        return None
    text = (
        "A step on the layer's parameters also changes the full weight or bias that was loaded, "
        "because they share memory. Copy the values instead."
    )
    return Diagnosis("tensors-replaced", tuple(range(len(seen))), text, guide=GUIDE)
