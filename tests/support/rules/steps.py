"""Mistakes in the order of a training step, recognised by its calls (`support.probes.steps`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from gradsync.records import Diagnosis, Observation
from gradsync.testing.rules import Rule
from gradsync.testing.values import array, close
from gradsync.text import full_stop, listed

Calls = Sequence[tuple[str, float | None]]  # of one rank: a name, and the gradient at that moment


def batch_swapped(seen: Observation, _expected: Any) -> Diagnosis | None:
    """Recognise a step that fails because the model is called with the targets, integers."""
    failure = seen.failure
    if failure is None or failure.exception != "RuntimeError" or "Long" not in str(failure.detail):
        return None
    text = (
        f"{full_stop(failure.diagnosis.explanation)} The model got integers, and only the targets "
        "of this test are integers. A batch is `(inputs, targets)`, in this order."
    )
    return replace(failure.diagnosis, explanation=text)


def without_its_gradient(calls: Sequence[Calls], guide: str) -> Rule:
    """Return the rule for steps that did not have the gradient of their batch.

    Args:
        calls: by rank, the calls in order, for a weight that is 0 at first.
        guide: the heading of GUIDELINES.md on the step.
    """

    def rule(seen: Observation, expected: Any) -> Diagnosis | None:
        if expected is None:
            return None
        unchanged = not any(np.any(array(value)) for value in seen)
        texts = [_text(own, unchanged) for own in calls]
        ranks = tuple(rank for rank, text in enumerate(texts) if text)
        if not ranks:
            return None
        return Diagnosis("does-not-learn", ranks, texts[ranks[0]], guide=guide)

    return rule


def averaged_too_late(calls: Sequence[Calls], after: Sequence[float | None], guide: str) -> Rule:
    """Return the rule for ranks that step with their own gradients and average them afterwards.

    Args:
        calls: by rank, the calls of one step in order.
        after: by rank, the gradient after the step.
        guide: the heading of GUIDELINES.md on the step.
    """
    own = [_last(one, "backward") for one in calls]
    used = [_last(one, "step") for one in calls]

    def rule(_seen: Observation, expected: Any) -> Diagnosis | None:
        numbers = [gradient for gradient in own if gradient is not None]
        if expected is None or len(calls) < 2 or len(numbers) < len(own):
            return None
        mean = float(np.mean(numbers))
        if not close(used, own) or close(used, [mean] * len(own)):
            return None
        if not close(list(after), [mean] * len(own)):
            return None
        text = (
            "When `optimizer.step()` is called, each rank still has its own gradient, "
            f"{listed(f'{gradient:g}' for gradient in numbers)}. The gradients are averaged only "
            "after it. Average them between `backward()` and `optimizer.step()`."
        )
        ranks = tuple(range(len(calls)))
        return Diagnosis("gradients-not-synchronised", ranks, text, guide=guide)

    return rule


def _text(calls: Calls, unchanged: bool) -> str:
    """Return the text on the mistake in the calls of a rank, or ""."""
    names = [name for name, _ in calls]
    if "backward" not in names:
        return (
            "No gradient is computed: `backward()` is not called on the loss. `loss.backward` "
            "without parentheses does nothing."
        )
    if "step" not in names:
        return (
            "The gradients are computed, but `optimizer.step()` is not called, so the weights "
            "do not change. `optimizer.step` without parentheses does nothing."
        ) * unchanged  # otherwise something else changes the weight
    if names.index("step") < names.index("backward"):
        return (
            "`optimizer.step()` is called before `backward()`, so it does not use the gradients "
            "of this batch. Call it after `backward()`."
        )
    for (name, computed), (then, used) in pairwise(calls):
        if (name, then) == ("backward", "step") and computed and not used:
            state = "None" if used is None else "0"
            return (
                f"`backward()` computes the gradient {computed:g}, but the gradient is {state} "
                "when `optimizer.step()` is called. Clear the gradients before `backward()`, not "
                "after it."
            )
    return ""


def _last(calls: Calls, wanted: str) -> float | None:
    return next((gradient for name, gradient in reversed(calls) if name == wanted), None)
