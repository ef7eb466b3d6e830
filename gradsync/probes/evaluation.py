"""A model that notes how it is called, and what an evaluation does to it and around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gradsync.probes.notes import Notes
from gradsync.probes.returned import numbers_of
from gradsync.probes.seeding import seed_weights

WANTED = ("loss", "accuracy", "samples")


class Call(NamedTuple):
    """How a model was called."""

    training: tuple[bool, bool]  # the modes: of the model itself, and of the layer in it
    tracked: bool  # whether its outputs keep what their gradients need
    samples: int


class Spy(nn.Module):
    """A linear classifier of float64 that notes how it was called; always the same weights."""

    def __init__(self) -> None:
        super().__init__()
        seed_weights(3)
        self.layer = nn.Linear(4, 3).double()
        self.calls: Notes[Call] = Notes()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layer(inputs)
        modes = (self.training, self.layer.training)
        self.calls.append(Call(modes, outputs.requires_grad, len(inputs)))
        return outputs


def tells_predictions_apart(batches: Iterable[tuple[Tensor, Tensor]]) -> bool:
    """Tell whether, of a spy's outputs, only those of the likeliest class hit that many targets.

    Others are: of the unlikeliest, of the likeliest sample (`argmax` along the wrong dimension), of
    always the first class; and the misses.
    """
    model, hits = Spy(), torch.zeros(5, dtype=torch.int64)
    for inputs, targets in batches:
        outputs = model(inputs)
        likeliest = outputs.argmax(1)
        others = (outputs.argmin(1), outputs.argmax(0)[:1], torch.zeros_like(targets))
        hits += torch.stack(
            [
                (likeliest == targets).sum(),
                *((other == targets).sum() for other in others),
                (likeliest != targets).sum(),
            ]
        )
    return int(hits[0]) not in hits[1:].tolist()


def numbers(result: Mapping[str, float]) -> dict[str, float]:
    """Return what an evaluation returned, as plain numbers, without further entries.

    Raises:
        TypeError: it is no dict of numbers.
    """
    return numbers_of(result, WANTED, "evaluate returns")


def spied_evaluation(
    rank: int, evaluate: Callable[[nn.Module, nn.Module], Mapping[str, float]]
) -> dict[str, Any]:
    """Evaluate a spy that has a gradient, and a frozen bias, by cross-entropy.

    On rank 1 the spy is in evaluation mode.

    Returns:
        `result`, what was returned; `calls` of the model; `kept_mode` and `kept_grad`, whether
        these are as they were, `kept_frozen`, whether the same parameters are trainable as before,
        `kept_tracking`, whether gradients are still tracked; the `reduction` that the loss is left
        with.
    """
    model, loss_fn = Spy().train(rank != 1), nn.CrossEntropyLoss()
    model.layer.weight.grad = torch.full((3, 4), 2.0).double()
    model.layer.bias.requires_grad_(False)
    with torch.enable_grad():
        result = evaluate(model, loss_fn)
        tracking = torch.is_grad_enabled()
    weight, bias = model.layer.weight, model.layer.bias
    kept = weight.grad is not None and bool((weight.grad == 2).all()) and bias.grad is None
    return {
        "result": numbers(result),
        "calls": [call._asdict() for call in model.calls],
        "kept_mode": [m.training for m in (model, model.layer)] == [rank != 1] * 2,
        "kept_grad": kept,
        "kept_frozen": weight.requires_grad and not bias.requires_grad,
        "kept_tracking": tracking,
        "reduction": loss_fn.reduction,
    }
