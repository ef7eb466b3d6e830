"""Forward and backward of linear layers that are split over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from support.probes import raised
from support.probes.returned import tensor_returned

COLUMN, ROW = "ColumnParallelLinear", "RowParallelLinear"
BEFORE = 0.25  # the value of every parameter before a full layer is loaded


def _fill(layer: nn.Module, weight: Tensor, bias: Tensor) -> dict[str, nn.Parameter]:
    """Copy a rank's parts into its layer, by their sizes; return the layer's parameters.

    The result is empty if the parameters do not have the sizes of the parts.
    """
    named = {}
    for param in layer.parameters():
        name = {bias.numel(): "bias", weight.numel(): "weight"}.get(param.numel(), "other")
        named[name] = param
        part = {"weight": weight, "bias": bias}.get(name)
        if part is not None:
            turned = param.dim() == 2 and param.shape != weight.shape
            param.data.copy_(part.T if turned else part.reshape(param.shape))
    return named if "weight" in named and "other" not in named else {}


def _pass_through(
    layer: nn.Module, weight: Tensor, bias: Tensor, inputs: Tensor, upstream: Tensor
) -> dict[str, Any]:
    """Return the results of a rank's layer, forward and backward, in the dtype of the weight."""
    named = _fill(layer.to(weight.dtype), weight, bias)
    kept: dict[str, Any] = {
        "elements": sum(param.numel() for param in layer.parameters()),
        "fits": bool(named),
    }
    if not named:
        return kept
    dist.new_group()  # a mark: calls before it belong to creating and filling the layer
    leaf = inputs.clone().requires_grad_()
    outputs = tensor_returned(layer(leaf), "the layer's forward")
    kept |= {"outputs": outputs, "inputs": None, "weight": None, "bias": None}
    kept["trains_bias"] = "bias" in named and named["bias"].requires_grad
    if outputs.requires_grad and outputs.shape == upstream.shape:
        outputs.backward(upstream)  # type: ignore[no-untyped-call]
        kept |= {"inputs": leaf.grad, **{name: param.grad for name, param in named.items()}}
    if kept["weight"] is not None and kept["weight"].dim() == 2:
        turned = kept["weight"].shape != weight.shape
        kept["weight"] = kept["weight"].T if turned else kept["weight"]
    elif kept["weight"] is not None:
        kept["weight"] = kept["weight"].reshape(weight.shape)
    return kept


def probe_layers(
    rank: int,
    world_size: int,
    model_parallel: Any,
    name: str,
    layers: Sequence[Sequence[tuple[Mapping[str, Tensor], Mapping[str, Any]]]],
) -> list[dict[str, Any]]:
    """Return the results of this rank's part of each layer."""
    seen = []
    for parts, options in layers[rank]:
        outputs, inputs = parts["weight"].shape
        sizes = (inputs, outputs * world_size) if name == COLUMN else (inputs * world_size, outputs)
        layer = getattr(model_parallel, name)(*sizes, **options)
        seen.append(_pass_through(layer, **parts))
    return seen


def probe_whole(
    model_parallel: Any, first: Tensor, second: Tensor, inputs: Tensor, hidden: Tensor
) -> list[Tensor]:
    """Return the outputs of a column layer that gathers, and of a row layer that splits its input.

    Both have no bias, and load these full weights.
    """
    column = model_parallel.ColumnParallelLinear(
        first.shape[1], first.shape[0], bias=False, gather_output=True
    )
    row = model_parallel.RowParallelLinear(
        second.shape[1], second.shape[0], bias=False, input_is_parallel=False
    )
    model_parallel.load_full_linear(column, first, None)
    model_parallel.load_full_linear(row, second, None)
    return [column(inputs).detach(), row(hidden).detach()]


def answers(
    layer_class: Callable[..., nn.Module], cases: Sequence[tuple[int, int]]
) -> list[str | None]:
    """Return the error raised by the constructor of each of these layers, or None."""
    errors: list[str | None] = []
    for inputs, outputs in cases:
        error = raised(partial(layer_class, inputs, outputs))
        kind = ValueError if isinstance(error, ValueError) else type(error)  # subclasses count too
        errors.append(f"{kind.__name__}: {error}" if error else None)
    return errors


def probe_beginning(
    rank: int, model_parallel: Any, name: str, options: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Return a new layer's outputs for ones, and its weight, with a different seed on each rank."""
    torch.manual_seed(rank)
    torch.set_deterministic_debug_mode("error")  # fills uninitialised memory with NaN
    layer = getattr(model_parallel, name)(4, 6, **options)
    torch.set_deterministic_debug_mode("default")
    outputs = tensor_returned(layer(torch.ones(2, 4)), "the layer's forward")
    weight = max(layer.parameters(), key=torch.numel)
    return {"outputs": outputs, "weight": weight.detach().reshape(-1)}


def probe_loading(model_parallel: Any, full: Mapping[str, Tensor]) -> dict[str, Any]:
    """Load a frozen layer and a trainable one; describe them, and the tensors that were passed.

    `full` has the parameters of a column layer and a row layer: `first` (hidden, inputs), `second`
    (outputs, hidden), `first_bias` and `second_bias`.
    """
    (hidden, inputs), outputs = full["first"].shape, len(full["second"])
    column = model_parallel.ColumnParallelLinear(inputs, hidden)
    row = model_parallel.RowParallelLinear(hidden, outputs)
    column.requires_grad_(False)
    before = [*column.parameters(), *row.parameters()]
    trained = [param.requires_grad for param in before]
    for param in before:
        param.data.fill_(BEFORE)
    given = {name: tensor.clone() for name, tensor in full.items()}
    model_parallel.load_full_linear(column, given["first"], given["first_bias"])
    model_parallel.load_full_linear(row, given["second"], given["second_bias"])
    after = [*column.parameters(), *row.parameters()]
    same = len(before) == len(after) and all(map(lambda a, b: a is b, before, after))
    keeps = [p.requires_grad for p in after] == trained
    leaves = all(p.is_leaf and p.grad is None for p in after)
    loaded = any(bool((param != BEFORE).any()) for param in after)
    for param in after:
        param.data.add_(1)  # as an optimizer's step would
    return {"same": same, "keeps": keeps, "leaves": leaves, "loaded": loaded, "given": given}
