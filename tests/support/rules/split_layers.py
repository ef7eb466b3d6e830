"""Compare linear layers that are split over the ranks with a full one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gradsync.records import Diagnosis, Observation
from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    by_rank,
    case_by_case,
    each,
    raise_mistake,
)
from gradsync.testing.rules import Rule
from gradsync.text import ranks_text, verb
from support.probes.parallel_layers import COLUMN, probe_beginning, probe_layers
from support.rules.parallel_layers import (
    GATHERED,
    GUIDE,
    SUMMED,
    bias_left_behind,
    column_input_mistake,
    diagnose_beginning,
    diagnose_gathering,
    is_idle,
    layer_gradient_mistakes,
    row_bias_mistake,
    row_input_mistake,
    row_output_mistakes,
    unlike_linear,
)
from support.rules.waiting import nobody_waited
from support.rules.wrong_results import ends_with

# A full layer's `weight` and `bias`, its `inputs`, and `upstream`, the gradient of its outputs.
Layer = Mapping[str, Tensor]
Case = tuple[Layer, Mapping[str, Any]]  # a layer, and the options of its constructor


def _whole_layer(drawn: Layer, bias: bool = True) -> dict[str, Any]:
    """Return the outputs of the full layer, and the gradients of its inputs and parameters."""
    leaves = {name: drawn[name].clone().requires_grad_() for name in ("inputs", "weight", "bias")}
    outputs = F.linear(leaves["inputs"], leaves["weight"], leaves["bias"] if bias else None)
    loss = (outputs * drawn["upstream"]).sum()  # outputs.backward(gradient) would import sympy
    loss.backward()  # type: ignore[no-untyped-call]
    return {"outputs": outputs.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}


def _parts_of(drawn: Layer, world_size: int, dims: Mapping[str, int]) -> list[dict[str, Tensor]]:
    """Return the drawn tensors for each rank, which gets only its part of the tensors in `dims`.

    `dims` are the dimensions to split. A rank that has all parts could compute the layer alone.
    """
    pieces = {
        name: tensor.chunk(world_size, dims[name]) if name in dims else [tensor] * world_size
        for name, tensor in drawn.items()
    }
    return [{n: p[rank].clone() for n, p in pieces.items()} for rank in range(world_size)]


def _split_dims(name: str, options: Mapping[str, Any]) -> dict[str, int]:
    """Return which tensors are split in a layer with these options, and along which dimension."""
    if name == COLUMN:
        return {"weight": 0, "bias": 0} | ({} if options.get("gather_output") else {"upstream": -1})
    return {"weight": 1} | ({"inputs": -1} if options.get("input_is_parallel", True) else {})


def run_layers(
    ranks: Callable[..., Observation], name: str, world_size: int, cases: Sequence[Case]
) -> Observation:
    """Run layers of a class in turn, forward and backward; each rank is given only its parts."""
    parts = [_parts_of(drawn, world_size, _split_dims(name, options)) for drawn, options in cases]
    layers = [
        [(of_layer[rank], options) for of_layer, (_, options) in zip(parts, cases, strict=True)]
        for rank in range(world_size)
    ]
    seen = ranks(probe_layers, world_size, name=name, layers=by_rank(layers))
    raise_mistake(nobody_waited(seen, GUIDE))
    return seen


def judge_layers(name: str, seen: Observation, cases: Sequence[Case]) -> None:
    """Compare the outputs and gradients of each layer with those of the full layer.

    Raises:
        Mistake: they differ.
    """
    judge = _judge_column if name == COLUMN else _judge_row
    for of_layer, (drawn, options) in zip(case_by_case(seen, len(cases)), cases, strict=True):
        judge(of_layer, drawn, **options)


def check_layers(
    ranks: Callable[..., Observation], name: str, world_size: int, cases: Sequence[Case]
) -> None:
    """Run layers of a class, and compare them with full ones; see `judge_layers`."""
    judge_layers(name, run_layers(ranks, name, world_size, cases), cases)


def check_beginning(ranks: Callable[..., Observation], name: str, **options: Any) -> None:
    """Check that a new layer has random weights, and the same outputs on every rank.

    Args:
        ranks: the fixture.
        name: the name of the layer's class.
        **options: of its constructor, so that it returns all outputs for a full input.

    Raises:
        Mistake: it has not.
    """
    seen = ranks(probe_beginning, 2, name=name, options=options)
    raise_mistake(nobody_waited(seen, GUIDE))
    if name == COLUMN:
        raise_mistake(diagnose_gathering(seen, 6))
    raise_mistake(diagnose_beginning(seen, GATHERED if name == COLUMN else SUMMED))


def _other_elements(seen: Observation, wanted: int, what: str) -> Diagnosis | None:
    """Recognise parameters of other sizes than a rank's part."""
    wrong = tuple(rank for rank, kept in enumerate(seen) if not kept["fits"])
    if not wrong:
        return None
    held = max(seen[rank]["elements"] for rank in wrong)
    text = (
        f"On {ranks_text(wrong)}, the layer's parameters have {held} elements. They must have "
        f"{wanted}: {what}."
    )
    if held > wanted:
        text += " Create only this rank's part, not the full weight."
    code = "state-not-sharded" if held > wanted else "differs-from-single-process"
    return Diagnosis(code, wrong, text, guide=GUIDE)


def _check_outputs(seen: Observation, expected: Sequence[Any], mistakes: Sequence[Rule]) -> None:
    assert_rank_by_rank(
        each(seen, lambda kept: kept["outputs"]),
        expected,
        mistakes=[*(mistakes if len(seen) > 1 else []), unlike_linear("The layer's output")],
    )


def _check_gradient(
    seen: Observation, name: str, expected: Sequence[Any], *mistakes: Rule, gathers: bool = False
) -> None:
    known = layer_gradient_mistakes(name, expected, gathers=gathers)
    assert_rank_by_rank(
        each(seen, lambda kept: kept[name]),
        expected,
        mistakes=[*(mistakes if len(seen) > 1 else []), *known],
    )


def _judge_column(
    seen: Observation, drawn: Layer, *, gather_output: bool = False, bias: bool = True
) -> None:
    world_size = len(seen)
    whole = _whole_layer(drawn, bias)
    rows = len(drawn["weight"]) // world_size
    what = f"{rows} {verb(range(rows), 'row', 'rows')} of the weight"
    what += f" and {rows} of the bias" * bias
    raise_mistake(_other_elements(seen, rows * (drawn["weight"].shape[1] + bias), what))
    parts = whole["outputs"].chunk(world_size, -1)
    if gather_output:
        text = "With gather_output=True, each rank returns only its own part. Gather all outputs."
        rule = ends_with(parts, "parameters-not-gathered", text, GUIDE)
        _check_outputs(seen, [whole["outputs"]] * world_size, [rule])
    else:
        _check_outputs(seen, parts, [])
    how = {"gathers": gather_output}
    _check_gradient(seen, "weight", whole["weight"].chunk(world_size), **how)
    if bias:
        _check_gradient(seen, "bias", whole["bias"].chunk(world_size), **how)
    alone = column_input_mistake(drawn["upstream"], drawn["weight"], world_size)
    _check_gradient(seen, "inputs", [whole["inputs"]] * world_size, alone, **how)


def _judge_row(
    seen: Observation, drawn: Layer, *, input_is_parallel: bool = True, bias: bool = True
) -> None:
    world_size = len(seen)
    whole = _whole_layer(drawn, bias)
    columns = drawn["weight"].shape[1] // world_size
    what = f"{columns} {verb(range(columns), 'column', 'columns')} of the weight"
    what += " and the complete bias" * bias
    raise_mistake(_other_elements(seen, len(drawn["weight"]) * (columns + bias), what))
    rules = row_output_mistakes(drawn, whole["outputs"], world_size)
    _check_outputs(seen, [whole["outputs"]] * world_size, rules)
    _check_gradient(seen, "weight", whole["weight"].chunk(world_size, -1))
    if bias:
        _check_row_bias(seen, whole["bias"])
    if input_is_parallel:
        _check_gradient(seen, "inputs", whole["inputs"].chunk(world_size, -1))
    else:
        alone = row_input_mistake(whole["inputs"], world_size)
        _check_gradient(seen, "inputs", [whole["inputs"]] * world_size, alone)


def _check_row_bias(seen: Observation, whole: Tensor) -> None:
    """Compare the bias's gradient with the full one, on every rank that has a bias."""
    raise_mistake(bias_left_behind(seen))
    if not all(map(is_idle, seen)):  # it is enough if one rank has the bias
        seen = each(seen, lambda kept: {**kept, "bias": whole} if is_idle(kept) else kept)
    rule = row_bias_mistake(whole, len(seen))
    _check_gradient(seen, "bias", [whole] * len(seen), rule)


def check_blocks(
    seen: Observation, first: Tensor, second: Tensor, inputs: Tensor, hidden: Tensor
) -> None:
    """Check what `probe_whole` returned: each rank's part is a block of the full layer."""
    size = seen.world_size
    gathered, summed = inputs @ first.T, hidden @ second.T
    strided = [feature for rank in range(size) for feature in range(rank, len(first), size)]
    text = (
        "Each rank has loaded every N-th row or column. But layers that gather their outputs, or "
        "split their inputs, put the parts one after the other: rank 0 has the first block, rank "
        "1 the next."
    )
    assert_on_every_rank(
        seen,
        [gathered, summed],
        mistakes=[
            ends_with(
                [[gathered[:, strided], hidden @ second[:, strided].T]] * size,
                "differs-from-single-process",
                text,
                GUIDE,
            ),
            unlike_linear("The output of a layer that gathers or splits, after loading"),
        ],
    )
