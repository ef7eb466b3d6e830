"""Visible tests of the parallel layers: small numbers, on 2 ranks."""

import torch

from gradsync.testing import assert_on_every_rank, exercise, raise_mistake
from gradsync.testing.traffic import too_many_bytes
from support.probes.parallel_layers import COLUMN, ROW, answers, probe_loading, probe_whole
from support.rules.parallel_layers import (
    GUIDE,
    SENDS_WEIGHTS,
    diagnose_refusals,
    loaded_wrongly,
    unlike_linear,
)
from support.rules.split_layers import (
    check_beginning,
    check_blocks,
    check_layers,
    judge_layers,
    run_layers,
)
from support.rules.wrong_results import ends_with

WIDE, WEIGHT_BYTES = 64, 64 * 64 // 2 * 4  # the bytes are of each rank's part, with 2 ranks


def column_layer(*shape, upstream=(1.0, 1.0)):
    """Return a layer with the rows [1, 2] and [3, 4] and the biases 5 and 6; the input is [1, 10].

    `shape` are the dimensions of the input before the features.
    """
    return {
        "weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "bias": torch.tensor([5.0, 6.0]),
        "inputs": torch.tensor([1.0, 10.0]).expand(*shape, 2),
        "upstream": torch.tensor(upstream).expand(*shape, 2),
    }


def row_layer(*shape):
    """Return a layer with the row [1, 2, 3, 4] and the bias 5; the input is [1, 1, 10, 10]."""
    return {
        "weight": torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        "bias": torch.tensor([5.0]),
        "inputs": torch.tensor([1.0, 1.0, 10.0, 10.0]).expand(*shape, 4),
        "upstream": torch.ones(*shape, 1),
    }


def in_double(layer):
    return {name: tensor.double() / 3 for name, tensor in layer.items()}


@exercise("phase2/ColumnParallelLinear", points=1)
def test_each_rank_computes_its_part_of_the_outputs(ranks):
    """Rank 0 has the weight's row [1, 2] and bias 5, rank 1 has [3, 4] and 6; the input is [1, 10].

    The outputs are 1 + 20 + 5 = 26 and 3 + 40 + 6 = 49. The gradient of their sum with respect to
    the input is [1 + 3, 2 + 4] on both ranks.
    """
    check_layers(ranks, COLUMN, 2, [(column_layer(1), {})])


@exercise("phase2/ColumnParallelLinear", points=1)
def test_a_column_layer_takes_inputs_of_any_shape_and_dtype(ranks):
    """Inputs have the shapes (2,), (3, 2) and (2, 1, 2); one is of float64, one has no bias."""
    layers = [
        (column_layer(), {}),
        (in_double(column_layer(3)), {}),
        (column_layer(2, 1), {"bias": False}),
    ]

    check_layers(ranks, COLUMN, 2, layers)


@exercise("phase2/ColumnParallelLinear", points=1)
def test_a_rank_without_gradient_takes_part_in_backward(ranks):
    """The gradient of rank 0's output is 0 and that of rank 1's is 1: the input's is [3, 4]."""
    check_layers(ranks, COLUMN, 2, [(column_layer(1, upstream=(0.0, 1.0)), {})])


@exercise("phase2/ColumnParallelLinear", points=1)
def test_gathered_outputs_are_on_every_rank(ranks):
    """With gather_output=True, both ranks have both outputs, 26 and 49, and the same gradients."""
    options = {"gather_output": True}

    layers = [column_layer(*shape, upstream=(1.0, 2.0)) for shape in ([1], [2, 1])]
    check_layers(ranks, COLUMN, 2, [(layer, options) for layer in layers])


def check_traffic(ranks, name):
    """Check the bytes that a layer of 64 inputs and outputs sends for one sample."""
    side = torch.arange(WIDE) / WIDE
    layer = {
        "weight": side[:, None] - side,
        "bias": side,
        "inputs": 1 - side,
        "upstream": torch.ones(WIDE),
    }
    seen = run_layers(ranks, name, 2, [(layer, {})])

    why = SENDS_WEIGHTS.format(f"{WEIGHT_BYTES:,}")
    raise_mistake(too_many_bytes(seen, WEIGHT_BYTES, why, GUIDE))
    judge_layers(name, seen, [(layer, {})])


@exercise("phase2/ColumnParallelLinear", points=1)
def test_a_column_layer_sends_no_weights(ranks):
    """For a sample of 64 features, the ranks send fewer bytes than a part of the weight has."""
    check_traffic(ranks, COLUMN)


@exercise("phase2/RowParallelLinear", points=1)
def test_the_products_are_summed_and_the_bias_is_added_once(ranks):
    """Rank 0 has weights 1 and 2 for inputs 1 and 1, rank 1 has 3 and 4 for 10 and 10; bias 5.

    The products are 3 and 70, and the output is 3 + 70 + 5 = 78 on both ranks.
    """
    check_layers(ranks, ROW, 2, [(row_layer(1), {})])


@exercise("phase2/RowParallelLinear", points=1)
def test_a_row_layer_takes_inputs_of_any_shape_and_dtype(ranks):
    """Inputs have the shapes (2,), (3, 2) and (2, 1, 2) on a rank; one is of float64."""
    layers = [
        (row_layer(), {}),
        (in_double(row_layer(3)), {}),
        (row_layer(2, 1), {"bias": False}),
    ]

    check_layers(ranks, ROW, 2, layers)


@exercise("phase2/RowParallelLinear", points=1)
def test_a_whole_input_is_split_by_the_layer(ranks):
    """With input_is_parallel=False, both ranks get all 4 inputs, and all 4 input gradients."""
    options = {"input_is_parallel": False}

    check_layers(ranks, ROW, 2, [(row_layer(1), options), (in_double(row_layer(2, 1)), options)])


@exercise("phase2/RowParallelLinear", points=1)
def test_a_row_layer_sends_no_weights(ranks):
    """For a sample of 64 features, the ranks send fewer bytes than a part of the weight has."""
    check_traffic(ranks, ROW)


@exercise("phase2/ColumnParallelLinear", points=1)
def test_outputs_that_cannot_be_split_evenly_are_refused(ranks):
    """3 outputs can't be split over 2 ranks and raise a ValueError. 3 inputs are allowed."""

    def probe(model_parallel):
        return answers(model_parallel.ColumnParallelLinear, [(2, 3), (3, 2)])

    raise_mistake(diagnose_refusals(ranks(probe, world_size=2), "out_features"))


@exercise("phase2/RowParallelLinear", points=1)
def test_inputs_that_cannot_be_split_evenly_are_refused(ranks):
    """3 inputs can't be split over 2 ranks and raise a ValueError. 3 outputs are allowed."""

    def probe(model_parallel):
        return answers(model_parallel.RowParallelLinear, [(3, 2), (2, 3)])

    raise_mistake(diagnose_refusals(ranks(probe, world_size=2), "in_features"))


@exercise("phase2/ColumnParallelLinear", points=1)
def test_a_new_column_layer_starts_with_random_weights(ranks):
    """A new layer's weights are random, and both ranks gather the same 6 outputs."""
    check_beginning(ranks, COLUMN, gather_output=True)


@exercise("phase2/RowParallelLinear", points=1)
def test_a_new_row_layer_starts_with_random_weights(ranks):
    """A new layer's weights are random, and its bias is the same on both ranks."""
    check_beginning(ranks, ROW, input_is_parallel=False)


FULL = {
    "first": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    "first_bias": torch.tensor([0.0, 7.0]),
    "second": torch.tensor([[1.0, 10.0]]),
    "second_bias": torch.tensor([1.0]),
}


@exercise("phase2/load_full_linear", points=1)
def test_each_rank_loads_its_part(ranks):
    """Two full layers, loaded in parts on 2 ranks, map [1, 1] to 3 and 14, and then to 144.

    The first has the rows [1, 2] and [3, 4] and the biases 0 and 7, the second the row [1, 10] and
    the bias 1: 3 + 140 + 1. Without the biases, the outputs are 3 and 7, and then 73.
    """

    def probe(model_parallel, full):
        outputs = []
        for bias in (True, False):
            column = model_parallel.ColumnParallelLinear(2, 2, bias)
            row = model_parallel.RowParallelLinear(2, 1, bias)
            for param in (*column.parameters(), *row.parameters()):
                param.data.zero_()
            for layer, name in ((column, "first"), (row, "second")):
                part = full[f"{name}_bias"] if bias else None
                model_parallel.load_full_linear(layer, full[name], part)
            outputs.append(row(column(torch.ones(1, 2))).detach())
        return torch.cat(outputs)

    seen = ranks(probe, world_size=2, full=FULL)

    part = "Every rank has loaded rank 0's part of the {}. Each rank must load its own part."
    bias = "The outputs are those of the full weights with other biases. Load the biases too: the "
    bias += "rank's part in a column layer, the complete bias in a row layer."
    share = "The row layer's bias is divided by the number of ranks. The layer adds it once, after "
    share += "the sum, so every rank must load all of it."
    known = [
        ends_with([torch.tensor([[first], [second]]) for first in by_rank], code, text, GUIDE)
        for by_rank, second, code, text in (
            ([7.0, 7.0], 6.0, "same-shard-on-every-rank", part.format("layers")),
            ([74.0, 74.0], 73.0, "same-shard-on-every-rank", part.format("column layer's bias")),
            ([143.0, 143.0], 73.0, "differs-from-single-process", bias),
            ([73.0, 73.0], 73.0, "differs-from-single-process", bias),
            ([143.5, 143.5], 73.0, "differs-from-single-process", share),
            ([144.0, 143.0], 73.0, "only-one-rank-has-it", bias),
        )
    ]
    rule = unlike_linear("The output of a column layer and a row layer after loading")
    assert_on_every_rank(seen, torch.tensor([[144.0], [73.0]]), mistakes=[*known, rule])


@exercise("phase2/load_full_linear", points=1)
def test_each_part_is_a_block_of_the_full_layer(ranks):
    """Rank 0 has the first half: [1, 2, 3, 4] times 1 is gathered in this order.

    A row layer with these weights splits [1, 10, 100, 1000], and returns 4321.
    """
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    full = {"first": weights.T.contiguous(), "second": weights}
    full |= {"inputs": torch.ones(1, 1), "hidden": torch.tensor([[1.0, 10.0, 100.0, 1000.0]])}

    check_blocks(ranks(probe_whole, world_size=2, **full), **full)


@exercise("phase2/load_full_linear", points=1)
def test_the_parameters_stay_the_same_objects(ranks):
    """The values are copied into the layers' parameters, of which the first layer's are frozen."""
    raise_mistake(loaded_wrongly(ranks(probe_loading, world_size=2, full=FULL), FULL))


@exercise("phase2/load_full_linear", points=1)
def test_an_optimizer_that_was_created_before_still_trains(ranks):
    """A step with learning rate 1/2 lowers all weights by 1/2: outputs 3 and 7 become 2 and 6."""

    def probe(model_parallel, full):
        column = model_parallel.ColumnParallelLinear(2, 2, bias=False, gather_output=True)
        optimizer = torch.optim.SGD(column.parameters(), lr=0.5)
        model_parallel.load_full_linear(column, full["first"], None)
        column(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return column(torch.ones(1, 2)).detach()

    seen = ranks(probe, world_size=2, full=FULL)

    text = "An optimizer created before load_full_linear no longer trains the layer, because the "
    text += "layer's parameters are now new objects. Copy into the existing parameters."
    stale = ends_with([torch.tensor([[3.0, 7.0]])] * 2, "tensors-replaced", text, GUIDE)
    rule = unlike_linear("After a step, the output of a layer that was loaded")
    assert_on_every_rank(seen, torch.tensor([[2.0, 6.0]]), mistakes=[stale, rule])
