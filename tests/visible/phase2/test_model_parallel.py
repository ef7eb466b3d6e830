"""Visible tests of the parallel layers: small numbers, on 2 ranks."""

import torch

from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    check,
    each,
    exercise,
    raise_mistake,
)
from gradsync.text import counted, listed
from support.rules.parallel_layers import (
    column_input_mistake,
    diagnose_refusals,
    layer_gradient_mistakes,
    row_output_mistakes,
    unlike_linear,
)
from support.rules.wrong_results import ends_with

LAYERS = "Tensor parallelism"


def fill(layer, weight, bias):
    """Copy a rank's parts into its layer's parameters, which are recognised by their sizes."""
    parts = {len(part): torch.tensor(part) for part in (weight, bias)}
    params = {param.numel(): param for param in layer.parameters()}
    if not {len(weight)} <= params.keys() <= parts.keys():
        raise ValueError(
            f"A rank's part has {counted(len(weight), 'weight')} and {len(bias)} bias here, but "
            "the layer's parameters have the shapes "
            f"{listed(tuple(param.shape) for param in layer.parameters())}."
        )
    for size, param in params.items():
        param.data.copy_(parts[size].reshape(param.shape))
    return params[len(weight)]


def forward_and_backward(layer, weight, bias, inputs):
    """Return the outputs, and the gradients of their sum."""
    param = fill(layer, weight, bias)
    leaf = torch.tensor([inputs], requires_grad=True)
    outputs = layer(leaf)
    if outputs.requires_grad:
        outputs.backward(torch.ones_like(outputs))
    gradient = None if param.grad is None else param.grad.reshape(-1)
    return {"outputs": outputs.detach(), "inputs": leaf.grad, "weight": gradient}


def check_layer(seen, mistakes, **wanted):
    """Compare each rank's outputs and gradients with the expected values."""
    for name, values in wanted.items():
        by_rank = [torch.tensor(value) for value in values]
        rules = [unlike_linear("The layer's output")]
        if name != "outputs":
            rules = layer_gradient_mistakes(name, by_rank)
        assert_rank_by_rank(
            each(seen, lambda kept, name=name: kept[name]),
            by_rank,
            mistakes=[*mistakes.get(name, []), *rules],
        )


@exercise("phase2/ColumnParallelLinear", points=1)
def test_each_rank_computes_its_part_of_the_outputs(ranks):
    """Rank 0 has the weight's row [1, 2] and bias 5, rank 1 has [3, 4] and 6; the input is [1, 10].

    The outputs are 1 + 20 + 5 = 26 and 3 + 40 + 6 = 49. The gradient of their sum with respect to
    the input is [1 + 3, 2 + 4] on both ranks.
    """

    def probe(rank, model_parallel):
        layer = model_parallel.ColumnParallelLinear(2, 2)
        weight, bias = ([1.0, 2.0], [5.0]) if rank == 0 else ([3.0, 4.0], [6.0])
        return forward_and_backward(layer, weight, bias, [1.0, 10.0])

    seen = ranks(probe, world_size=2)

    alone = column_input_mistake(torch.ones(1, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), 2)
    check_layer(
        seen,
        {"inputs": [alone]},
        outputs=[[[26.0]], [[49.0]]],
        weight=[[1.0, 10.0], [1.0, 10.0]],
        inputs=[[[4.0, 6.0]], [[4.0, 6.0]]],
    )


@exercise("phase2/ColumnParallelLinear", points=1)
def test_gathered_outputs_are_on_every_rank(ranks):
    """With gather_output=True, both ranks have both outputs, 26 and 49, and the same gradients."""

    def probe(rank, model_parallel):
        layer = model_parallel.ColumnParallelLinear(2, 2, gather_output=True)
        weight, bias = ([1.0, 2.0], [5.0]) if rank == 0 else ([3.0, 4.0], [6.0])
        return forward_and_backward(layer, weight, bias, [1.0, 10.0])

    seen = ranks(probe, world_size=2)

    parts = [torch.tensor([[26.0]]), torch.tensor([[49.0]])]
    text = "With gather_output=True, each rank returns only its own part. Gather all outputs."
    check_layer(
        seen,
        {"outputs": [ends_with(parts, "parameters-not-gathered", text, LAYERS)]},
        outputs=[[[26.0, 49.0]]] * 2,
        weight=[[1.0, 10.0], [1.0, 10.0]],
        inputs=[[[4.0, 6.0]], [[4.0, 6.0]]],
    )


def probe_row(rank, model_parallel, parallel):
    layer = model_parallel.RowParallelLinear(4, 1, input_is_parallel=parallel)
    weight, inputs = ([1.0, 2.0], [1.0, 1.0]) if rank == 0 else ([3.0, 4.0], [10.0, 10.0])
    inputs = inputs if parallel else [1.0, 1.0, 10.0, 10.0]
    return forward_and_backward(layer, weight, [5.0], inputs)


def row_mistakes():
    drawn = {
        "weight": torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        "inputs": torch.tensor([[1.0, 1.0, 10.0, 10.0]]),
        "bias": torch.tensor([5.0]),
    }
    return {"outputs": row_output_mistakes(drawn, torch.tensor([[78.0]]), 2)}


@exercise("phase2/RowParallelLinear", points=1)
def test_the_products_are_summed_and_the_bias_is_added_once(ranks):
    """Rank 0 has weights 1 and 2 for inputs 1 and 1, rank 1 has 3 and 4 for 10 and 10; bias 5.

    The products are 3 and 70, and the output is 3 + 70 + 5 = 78 on both ranks.
    """
    seen = ranks(probe_row, world_size=2, parallel=True)

    check_layer(
        seen,
        row_mistakes(),
        outputs=[[[78.0]], [[78.0]]],
        weight=[[1.0, 1.0], [10.0, 10.0]],
        inputs=[[[1.0, 2.0]], [[3.0, 4.0]]],
    )


@exercise("phase2/RowParallelLinear", points=1)
def test_a_whole_input_is_split_by_the_layer(ranks):
    """With input_is_parallel=False, both ranks get all 4 inputs, and all 4 input gradients."""
    seen = ranks(probe_row, world_size=2, parallel=False)

    check_layer(
        seen,
        row_mistakes(),
        outputs=[[[78.0]], [[78.0]]],
        weight=[[1.0, 1.0], [10.0, 10.0]],
        inputs=[[[1.0, 2.0, 3.0, 4.0]]] * 2,
    )


@exercise("phase2/ColumnParallelLinear", points=1)
def test_outputs_that_cannot_be_split_evenly_are_refused(ranks):
    """3 outputs can't be split over 2 ranks and raise a ValueError. 3 inputs are allowed."""

    def probe(model_parallel):
        return refusals(model_parallel.ColumnParallelLinear, [(2, 3), (3, 2)])

    raise_mistake(diagnose_refusals(ranks(probe, world_size=2), "out_features"))


@exercise("phase2/RowParallelLinear", points=1)
def test_inputs_that_cannot_be_split_evenly_are_refused(ranks):
    """3 inputs can't be split over 2 ranks and raise a ValueError. 3 outputs are allowed."""

    def probe(model_parallel):
        return refusals(model_parallel.RowParallelLinear, [(3, 2), (2, 3)])

    raise_mistake(diagnose_refusals(ranks(probe, world_size=2), "in_features"))


def refusals(layer_class, cases):
    """Return the error raised by the constructor of each layer, or None."""
    errors = []
    for sizes in cases:
        try:
            layer_class(*sizes)
            errors.append(None)
        except ValueError as error:
            errors.append(f"ValueError: {error}")
    return errors


@exercise("phase2/load_full_linear", points=1)
def test_each_rank_loads_its_part(ranks):
    """Two full layers, loaded in parts on 2 ranks, map [1, 1] to 3 + 14 + 1 = 18.

    The first has the rows [1, 2] and [3, 4] and the biases 0 and 7, the second the row [1, 1] and
    the bias 1. An optimizer created before loading still trains the layers.
    """

    def probe(model_parallel):
        column = model_parallel.ColumnParallelLinear(2, 2)
        row = model_parallel.RowParallelLinear(2, 1)
        before = [*column.parameters(), *row.parameters()]
        weight, bias = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.0, 7.0])
        model_parallel.load_full_linear(column, weight, bias)
        model_parallel.load_full_linear(row, torch.ones(1, 2), torch.ones(1))
        after = [*column.parameters(), *row.parameters()]
        same = all(a is b for a, b in zip(before, after, strict=True))
        return {"same": same, "outputs": row(column(torch.ones(1, 2))).detach()}

    seen = ranks(probe, world_size=2)

    outputs = each(seen, lambda kept: kept["outputs"])
    rule = unlike_linear("The output of a column layer and a row layer after loading")
    assert_on_every_rank(outputs, torch.tensor([[18.0]]), mistakes=[rule])
    check(
        all(kept["same"] for kept in seen),
        "tensors-replaced",
        "load_full_linear replaced the layer's parameters with new objects. An optimizer created "
        "earlier would train the old ones. Copy into the existing parameters.",
        guide=LAYERS,
    )
