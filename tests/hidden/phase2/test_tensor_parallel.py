"""Linear layers split over N ranks give the same results as `nn.Linear`, in both passes."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from gradsync.testing import (
    assert_rank_by_rank,
    by_rank,
    case_by_case,
    check,
    each,
    exercise,
    raise_mistake,
)
from gradsync.testing.traffic import too_many_bytes
from gradsync.text import ranks_text
from support.probes.returned import tensor_returned
from support.rules.parallel_layers import (
    bias_left_behind,
    column_input_mistake,
    is_idle,
    layer_gradient_mistakes,
    row_bias_mistake,
    row_input_mistake,
    row_output_mistakes,
    unlike_linear,
)
from support.rules.waiting import nobody_waited
from support.rules.wrong_results import ends_with

GUIDE = "Tensor parallelism"
COLUMN, ROW = "ColumnParallelLinear", "RowParallelLinear"
KEPT, SPLIT = 5, 12  # features on the side that is not split, and on the side that is
CASES = {  # for each world size, a list of layers: (shape before the features, has a bias)
    3: [((3,), True), ((2, 1, 2), False), ((2, 3), True)],
    1: [((3,), True)],
}
WIDE, WEIGHT_BYTES = 64, 64 * 64 // 2 * 4  # the bytes are of each rank's part, with 2 ranks
SENDS_WEIGHTS = (
    f"They do so for one sample, although a rank's part of the weight has only {WEIGHT_BYTES:,} "
    "bytes. Send activations and their gradients, never parts of the weight."
)


def draw(rng, outputs, inputs, batch):
    """Return a full layer, its inputs, and the gradient of its outputs."""
    shapes = {
        "weight": (outputs, inputs),
        "bias": (outputs,),
        "inputs": (*batch, inputs),
        "upstream": (*batch, outputs),
    }
    return {n: torch.from_numpy(rng.standard_normal(s, np.float32)) for n, s in shapes.items()}


def whole_layer(drawn, bias=True):
    """Return the outputs of the full layer, and the gradients of its inputs and parameters."""
    leaves = {name: drawn[name].clone().requires_grad_() for name in ("inputs", "weight", "bias")}
    outputs = F.linear(leaves["inputs"], leaves["weight"], leaves["bias"] if bias else None)
    (outputs * drawn["upstream"]).sum().backward()  # backward(gradient) would import sympy
    return {"outputs": outputs.detach(), **{name: leaf.grad for name, leaf in leaves.items()}}


def parts_of(drawn, world_size, dims):
    """Return the drawn tensors for each rank, which gets only its part of the tensors in `dims`.

    `dims` are the dimensions to split. A rank that has all parts could compute the layer alone.
    """
    pieces = {
        name: tensor.chunk(world_size, dims[name]) if name in dims else [tensor] * world_size
        for name, tensor in drawn.items()
    }
    return [{n: p[rank].clone() for n, p in pieces.items()} for rank in range(world_size)]


def fill(layer, weight, bias):
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


def pass_through(layer, weight, bias, inputs, upstream):
    """Return the results of a rank's layer, forward and backward, in the dtype of the weight."""
    named = fill(layer.to(weight.dtype), weight, bias)
    kept = {"elements": sum(param.numel() for param in layer.parameters()), "fits": bool(named)}
    if not named:
        return kept
    dist.new_group()  # a mark: calls before it belong to creating and filling the layer
    leaf = inputs.clone().requires_grad_()
    outputs = tensor_returned(layer(leaf), "the layer's forward")
    kept |= {"outputs": outputs, "inputs": None, "weight": None, "bias": None}
    kept["trains_bias"] = "bias" in named and named["bias"].requires_grad
    if outputs.requires_grad and outputs.shape == upstream.shape:
        outputs.backward(upstream)
        kept |= {"inputs": leaf.grad, **{name: param.grad for name, param in named.items()}}
    if kept["weight"] is not None and kept["weight"].dim() == 2:
        turned = kept["weight"].shape != weight.shape
        kept["weight"] = kept["weight"].T if turned else kept["weight"]
    elif kept["weight"] is not None:
        kept["weight"] = kept["weight"].reshape(weight.shape)
    return kept


def probe_layers(rank, world_size, model_parallel, name, layers):
    """Return the results of this rank's part of each layer."""
    seen = []
    for parts, options in layers[rank]:
        outputs, inputs = parts["weight"].shape
        sizes = (inputs, outputs * world_size) if name == COLUMN else (inputs * world_size, outputs)
        layer = getattr(model_parallel, name)(*sizes, **options)
        seen.append(pass_through(layer, **parts))
    return seen


def split_dims(name, *, gather_output=False, input_is_parallel=True, **_):
    """Return which tensors are split in a layer with these options, and along which dimension."""
    if name == COLUMN:
        return {"weight": 0, "bias": 0} | ({} if gather_output else {"upstream": -1})
    return {"weight": 1} | ({"inputs": -1} if input_is_parallel else {})


def run(ranks, name, world_size, cases):
    """Run layers in turn, each a pair of drawn tensors and options; return each observation."""
    parts = [parts_of(drawn, world_size, split_dims(name, **options)) for drawn, options in cases]
    layers = [
        [(of_layer[rank], options) for of_layer, (_, options) in zip(parts, cases, strict=True)]
        for rank in range(world_size)
    ]
    seen = ranks(probe_layers, world_size, name=name, layers=by_rank(layers))
    raise_mistake(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(cases))


def check_elements(seen, wanted, what):
    """Check the sizes of each rank's parameters."""
    wrong = [rank for rank, kept in enumerate(seen) if not kept["fits"]]
    held = max([seen[rank]["elements"] for rank in wrong], default=0)
    check(
        not wrong,
        "state-not-sharded" if held > wanted else "differs-from-single-process",
        f"On {ranks_text(wrong)}, the layer's parameters have {held} elements. They must have "
        f"{wanted}: {what}.",
        ranks=wrong,
        guide=GUIDE,
    )


def check_outputs(seen, expected, mistakes):
    assert_rank_by_rank(
        each(seen, lambda kept: kept["outputs"]),
        expected,
        mistakes=[*(mistakes if len(seen) > 1 else []), unlike_linear("The layer's output")],
    )


def check_gradient(seen, name, expected, *mistakes):
    assert_rank_by_rank(
        each(seen, lambda kept: kept[name]),
        expected,
        mistakes=[*(mistakes if len(seen) > 1 else []), *layer_gradient_mistakes(name, expected)],
    )


def judge_column(seen, drawn, *, gather_output=False, bias=True):
    world_size = len(seen)
    whole = whole_layer(drawn, bias)
    rows = len(drawn["weight"]) // world_size
    check_elements(
        seen,
        rows * (drawn["weight"].shape[1] + bias),
        f"{rows} rows of the weight and, if the layer has one, their bias",
    )
    parts = whole["outputs"].chunk(world_size, -1)
    if gather_output:
        text = "With gather_output=True, each rank returns only its own part. Gather all outputs."
        rule = ends_with(parts, "parameters-not-gathered", text, GUIDE)
        check_outputs(seen, [whole["outputs"]] * world_size, [rule])
    else:
        check_outputs(seen, parts, [])
    check_gradient(seen, "weight", whole["weight"].chunk(world_size))
    if bias:
        check_gradient(seen, "bias", whole["bias"].chunk(world_size))
    alone = column_input_mistake(drawn["upstream"], drawn["weight"], world_size)
    check_gradient(seen, "inputs", [whole["inputs"]] * world_size, alone)


def judge_row(seen, drawn, *, input_is_parallel=True, bias=True):
    world_size = len(seen)
    whole = whole_layer(drawn, bias)
    columns = drawn["weight"].shape[1] // world_size
    check_elements(
        seen,
        len(drawn["weight"]) * (columns + bias),
        f"{columns} columns of the weight and, if the layer has one, the complete bias",
    )
    rules = row_output_mistakes(drawn, whole["outputs"], world_size)
    check_outputs(seen, [whole["outputs"]] * world_size, rules)
    check_gradient(seen, "weight", whole["weight"].chunk(world_size, -1))
    if bias:
        check_row_bias(seen, whole["bias"])
    if input_is_parallel:
        check_gradient(seen, "inputs", whole["inputs"].chunk(world_size, -1))
    else:
        alone = row_input_mistake(whole["inputs"], world_size)
        check_gradient(seen, "inputs", [whole["inputs"]] * world_size, alone)


def check_row_bias(seen, whole):
    """Compare the bias's gradient with the full one, on every rank that has a bias."""
    raise_mistake(bias_left_behind(seen))
    if not all(map(is_idle, seen)):  # it is enough if one rank has the bias
        seen = each(seen, lambda kept: {**kept, "bias": whole} if is_idle(kept) else kept)
    rule = row_bias_mistake(whole, len(seen))
    check_gradient(seen, "bias", [whole] * len(seen), rule)


def draw_cases(rng, world_size, outputs, inputs):
    """Draw the layers of CASES: tensors, and the layer's options."""
    return [(draw(rng, outputs, inputs, batch), {"bias": b}) for batch, b in CASES[world_size]]


def draw_in_two_precisions(rng, outputs, inputs, **options):
    single, drawn = (draw(rng, outputs, inputs, batch) for batch in ((2, 3), (4,)))
    double = {name: tensor.double() for name, tensor in drawn.items()}
    return [(single, options), (double, options)]


@pytest.mark.parametrize("world_size", CASES)
@exercise("phase2/ColumnParallelLinear", points=2)
def test_a_column_parallel_layer_equals_its_part_of_the_whole(ranks, rng, world_size):
    """Each rank has its part of nn.Linear's outputs and gradients, and all input gradients."""
    cases = draw_cases(rng, world_size, SPLIT, KEPT)
    if world_size > 1:  # rank 0 contributes zeros to the gradient of the last layer's input
        cases[-1][0]["upstream"][..., : SPLIT // world_size] = 0

    for seen, (drawn, options) in zip(run(ranks, COLUMN, world_size, cases), cases, strict=True):
        judge_column(seen, drawn, **options)


@exercise("phase2/ColumnParallelLinear", points=1)
def test_gathered_outputs_are_the_whole_layers(ranks, rng):
    """With gather_output=True, every rank has all outputs, and the gradients equal nn.Linear's."""
    cases = draw_in_two_precisions(rng, SPLIT, KEPT, gather_output=True)

    for seen, (drawn, options) in zip(run(ranks, COLUMN, 4, cases), cases, strict=True):
        judge_column(seen, drawn, **options)


@exercise("phase2/ColumnParallelLinear", points=0.5)
def test_a_column_parallel_layer_sends_no_weights(ranks, rng):
    """One forward and backward sends fewer bytes than a rank's part of the weight."""
    drawn = draw(rng, WIDE, WIDE, ())

    [seen] = run(ranks, COLUMN, 2, [(drawn, {})])

    raise_mistake(too_many_bytes(seen, WEIGHT_BYTES, SENDS_WEIGHTS, GUIDE))
    judge_column(seen, drawn)


@pytest.mark.parametrize("world_size", CASES)
@exercise("phase2/RowParallelLinear", points=2)
def test_a_row_parallel_layer_equals_the_whole(ranks, rng, world_size):
    """Every rank has nn.Linear's outputs, with one bias, and its part of the gradients."""
    cases = draw_cases(rng, world_size, KEPT, SPLIT)

    for seen, (drawn, options) in zip(run(ranks, ROW, world_size, cases), cases, strict=True):
        judge_row(seen, drawn, **options)


@exercise("phase2/RowParallelLinear", points=1)
def test_a_whole_input_is_split_by_the_layer(ranks, rng):
    """With input_is_parallel=False, each rank uses its part, and has all input gradients."""
    cases = draw_in_two_precisions(rng, KEPT, SPLIT, input_is_parallel=False)

    for seen, (drawn, options) in zip(run(ranks, ROW, 4, cases), cases, strict=True):
        judge_row(seen, drawn, **options)


@exercise("phase2/RowParallelLinear", points=0.5)
def test_a_row_parallel_layer_sends_no_weights(ranks, rng):
    """One forward and backward sends fewer bytes than a rank's part of the weight."""
    drawn = draw(rng, WIDE, WIDE, ())

    [seen] = run(ranks, ROW, 2, [(drawn, {})])

    raise_mistake(too_many_bytes(seen, WEIGHT_BYTES, SENDS_WEIGHTS, GUIDE))
    judge_row(seen, drawn)
