"""Mistakes in the weight of a token in the loss, recognised by the gradients of the logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradsync.ranks.deadlocks.calls import numel
from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.text import counted, ranks_text
from support.rules.wrong_results import ends_with

GUIDE = "The mean over tokens"
Array = np.ndarray[Any, Any]
Weigh = Callable[[Array, int], Array]  # the tokens of each rank -> the weight of a rank's tokens


def gradients(logits: Array, targets: Array, ignored: int, weigh: Weigh | None = None) -> Array:
    """Return each rank's gradient of its loss: (rank, token, vocabulary).

    `weigh` returns the weight of a token of each rank, from the ranks' numbers of tokens and the
    number of all tokens of a rank, the ignored ones too. By default, it is that of the contract.
    """
    counts = (targets != ignored)[..., None]
    shifted = np.exp(logits.astype(float) - logits.max(axis=-1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=-1, keepdims=True)
    hit = np.arange(logits.shape[-1]) == targets[..., None]
    numbers = (targets != ignored).sum(axis=1)
    weights = _right(numbers) if weigh is None else weigh(numbers, targets.shape[1])
    found: Array = (
        (probabilities - hit) * counts * np.broadcast_to(weights, len(targets))[:, None, None]
    )
    return found


def _right(numbers: Array) -> Array:
    return np.asarray(len(numbers) / max(int(numbers.sum()), 1))


WRONG: list[tuple[Weigh, str, str]] = [
    (
        lambda n, _: 1 / np.maximum(n, 1),
        "mean-of-means",
        "Every rank takes the mean over its own tokens, so a token counts more on a rank that has "
        "few of them. Divide the sum over this rank's tokens by the number of all ranks' tokens.",
    ),
    (
        lambda n, _: np.asarray(1 / max(n.sum(), 1)),
        "divided-twice",
        "The gradients are N times too small: they will be averaged over the ranks, which divides "
        "by N again. Multiply the loss by N.",
    ),
    (
        lambda n, _: np.asarray(len(n) ** 2 / max(n.sum(), 1)),
        "sum-not-mean",
        "The gradients are N times too large. Multiply the sum over this rank's tokens by N and "
        "divide by the number of all ranks' tokens, once.",
    ),
    (
        lambda _n, every: np.asarray(1 / every),
        "ignored-tokens-counted",
        "The ignored tokens are counted: the sum is divided by the number of all targets. Count "
        "only those that differ from ignore_index.",
    ),
    (
        lambda _n, _: np.asarray(1.0),
        "sum-not-mean",
        "The loss is the sum over this rank's tokens: it is not divided by their number on all "
        "ranks.",
    ),
    (
        lambda n, _: n / max(n.sum(), 1),
        "wrong-token-weight",
        "This rank's sum is multiplied by its share of the tokens: that is right for its mean, not "
        "for its sum.",
    ),
    (
        lambda n, _: 1 / np.maximum(n, 1) * n / max(n.sum(), 1),
        "divided-twice",
        "This rank's mean is weighted by its share of all tokens, which is the contribution to a "
        "sum over ranks. The gradients will be averaged over ranks: multiply by N, too.",
    ),
    (
        lambda n, _: np.asarray(1 / max(n.max(), 1)),
        "wrong-token-weight",
        "The sum is divided by the largest number of tokens of a rank. Add up the numbers of all "
        "ranks, and divide by their mean.",
    ),
    (
        lambda _n, _: np.zeros(1),
        "does-not-learn",
        "All gradients are 0: the loss does not depend on the logits. Detach the number of tokens "
        "only.",
    ),
]


def loss_mistakes(logits: Array, targets: Array, ignored: int) -> list[Rule]:
    """Return the rules that recognise a wrong weight by the gradients of every rank."""
    rules = []
    for weigh, code, text in WRONG:
        wrong = gradients(logits, targets, ignored, weigh)
        if not np.allclose(wrong, gradients(logits, targets, ignored)):
            rules.append(ends_with(list(wrong), code, text, GUIDE))
    blind = gradients(logits, targets, np.iinfo(int).min)
    return [*rules, _ignored_in_sum(blind, (targets == ignored)), _other]


def _ignored_in_sum(blind: Array, ignored: Array) -> Rule:
    """Return the rule for gradients of tokens that are ignored."""

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        ranks = [
            rank
            for rank, value in enumerate(seen)
            if np.shape(value) == blind[rank].shape
            and np.abs(np.asarray(value)[ignored[rank]]).max(initial=0) > 0
        ]
        if not ranks:
            return None
        text = (
            f"On {ranks_text(ranks)}, tokens whose target is ignore_index have a gradient. Leave "
            "them out of the sum, and out of the count."
        )
        return Diagnosis("ignored-tokens-counted", tuple(ranks), text, guide=GUIDE)

    return rule


def _other(seen: Observation, expected: Any) -> Diagnosis | None:
    """Recognise a token weight that differs by a constant for each rank."""
    if expected is None:
        return None
    text = (
        "Averaged over the ranks, the gradients are not those of the mean over the tokens of all "
        "ranks. A token's weight must be N divided by the number of all ranks' tokens that count."
    )
    return Diagnosis("wrong-token-weight", tuple(range(len(seen))), text, guide=GUIDE)


def too_much_sent(seen: Observation) -> Diagnosis | None:
    """Recognise more than one collective, or a collective of more than one number."""
    calls = seen.collectives(0)
    if len(calls) == 1 and numel(calls[0]) == 1:
        return None
    if not calls:
        text = "The ranks exchange nothing, so no rank can know the number of all tokens."
        return Diagnosis("loss-is-local", tuple(range(len(seen))), text, guide=GUIDE)
    sizes = [numel(call) for call in calls]
    text = (
        f"A rank calls {counted(len(calls), 'collective')}, of {sizes} elements. The ranks need "
        "one collective of one number: how many tokens count."
    )
    return Diagnosis("too-many-bytes", tuple(range(len(seen))), text, calls[-1].where, GUIDE)
