"""Record the calls of a training step, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from support.probes.returned import call_with_line


def traced_step(
    train_step: Callable[..., Any], model: nn.Linear, optimizer: torch.optim.Optimizer, batch: Any
) -> dict[str, Any]:
    """Take a step of a model with one weight.

    Returns:
        The returned `loss`; the `line` that returned it; the `weight` and its gradient `after` the
        step; and the `calls` in order, each "backward" or "step" with the gradient at that moment.
    """
    calls: list[tuple[str, float | None]] = []
    weight = model.weight
    hooks = [
        weight.register_hook(  # type: ignore[no-untyped-call]
            lambda grad: calls.append(("backward", grad.item()))
        ),
        optimizer.register_step_pre_hook(lambda *_: calls.append(("step", _number(weight.grad)))),
    ]
    loss, line = call_with_line(train_step, model, batch, nn.MSELoss(), optimizer)
    for hook in hooks:
        hook.remove()
    return {
        "loss": loss,
        "line": line,
        "weight": weight.item(),
        "after": _number(weight.grad),
        "calls": calls,
    }


def _number(grad: Tensor | None) -> float | None:
    """Return the number in a gradient with one element, or None without a gradient."""
    return None if grad is None else grad.item()
