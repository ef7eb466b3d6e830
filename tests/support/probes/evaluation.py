"""A model that records its calls, and a report of what an evaluation has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from support.probes.call_log import Notes
from support.probes.returned import numbers_of
from support.probes.seeding import seed_weights

RESULT = ("loss", "accuracy", "samples")


class Call(NamedTuple):
    """How a model was called."""

    training: tuple[bool, bool]  # the modes: of the model itself, and of the layer in it
    tracked: bool  # whether the outputs track gradients
    samples: int


class Spy(nn.Module):
    """A linear classifier of float64, always with the same weights, that records its calls."""

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
    """Return whether all wrong predictions of a spy hit more or fewer targets than the right one.

    Wrong predictions are the least likely class, the most likely sample (`argmax` along the wrong
    dimension, or without one), always the first class, and counting the misses.
    """
    model, hits = Spy(), torch.zeros(6, dtype=torch.int64)
    for inputs, targets in batches:
        outputs = model(inputs)
        likeliest = outputs.argmax(1)
        others = (
            outputs.argmin(1),
            outputs.argmax(0)[:1],
            outputs.argmax(),
            torch.zeros_like(targets),
        )
        hits += torch.stack(
            [
                (likeliest == targets).sum(),
                *((other == targets).sum() for other in others),
                (likeliest != targets).sum(),
            ]
        )
    return int(hits[0]) not in hits[1:].tolist()


def numbers(result: Any) -> dict[str, float]:
    """Return the numbers that `evaluate` returned; see `numbers_of`."""
    return numbers_of(result, RESULT, "the value that evaluate returns")


def modes_of(model: nn.Module) -> dict[str, bool]:
    """Return whether each module is in training mode, by name; the model's own name is ""."""
    return {name: module.training for name, module in model.named_modules()}


def spied_evaluation(rank: int, evaluate: Callable[[nn.Module, nn.Module], Any]) -> dict[str, Any]:
    """Evaluate a spy that has a gradient and a frozen bias, with a cross-entropy loss.

    On rank 1 the spy is in evaluation mode.

    Returns:
        `result`, the returned value; `calls` of the model; `switched`, the names of the modules
        whose mode has changed; `kept_grad`, whether the gradients are as before;
        `kept_frozen`, whether the same parameters are trainable as before; `kept_tracking`,
        whether gradients are still tracked; the `reduction` of the loss function afterwards.
    """
    model, loss_fn = Spy().train(rank != 1), nn.CrossEntropyLoss()
    modes = modes_of(model)
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
        "switched": [name for name, mode in modes_of(model).items() if mode != modes[name]],
        "kept_grad": kept,
        "kept_frozen": weight.requires_grad and not bias.requires_grad,
        "kept_tracking": tracking,
        "reduction": loss_fn.reduction,
    }
