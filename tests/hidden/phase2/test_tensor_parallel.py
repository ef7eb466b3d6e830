"""Linear layers split over N ranks give the same results as `nn.Linear`, in both passes."""

import numpy as np
import pytest
import torch

from gradsync.testing import exercise, raise_mistake
from gradsync.testing.traffic import too_many_bytes
from support.probes.parallel_layers import COLUMN, ROW
from support.rules.parallel_layers import GUIDE, SENDS_WEIGHTS
from support.rules.split_layers import check_layers, judge_layers, run_layers

KEPT, SPLIT = 5, 12  # features on the side that is not split, and on the side that is
CASES = {  # for each world size, a list of layers: (shape before the features, has a bias)
    3: [((3,), True), ((2, 1, 2), False), ((2, 3), True)],
    1: [((3,), True)],
}
WIDE, WEIGHT_BYTES = 64, 64 * 64 // 2 * 4  # the bytes are of each rank's part, with 2 ranks


def draw(rng, outputs, inputs, batch):
    """Return a full layer, its inputs, and the gradient of its outputs."""
    shapes = {
        "weight": (outputs, inputs),
        "bias": (outputs,),
        "inputs": (*batch, inputs),
        "upstream": (*batch, outputs),
    }
    return {n: torch.from_numpy(rng.standard_normal(s, np.float32)) for n, s in shapes.items()}


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

    check_layers(ranks, COLUMN, world_size, cases)


@exercise("phase2/ColumnParallelLinear", points=1)
def test_gathered_outputs_are_the_whole_layers(ranks, rng):
    """With gather_output=True, every rank has all outputs, and the gradients equal nn.Linear's."""
    cases = draw_in_two_precisions(rng, SPLIT, KEPT, gather_output=True)

    check_layers(ranks, COLUMN, 4, cases)


@exercise("phase2/ColumnParallelLinear", points=0.5)
def test_a_column_parallel_layer_sends_no_weights(ranks, rng):
    """One forward and backward sends fewer bytes than a rank's part of the weight."""
    check_traffic(ranks, COLUMN, draw(rng, WIDE, WIDE, ()))


@pytest.mark.parametrize("world_size", CASES)
@exercise("phase2/RowParallelLinear", points=2)
def test_a_row_parallel_layer_equals_the_whole(ranks, rng, world_size):
    """Every rank has nn.Linear's outputs, with one bias, and its part of the gradients."""
    cases = draw_cases(rng, world_size, KEPT, SPLIT)

    check_layers(ranks, ROW, world_size, cases)


@exercise("phase2/RowParallelLinear", points=1)
def test_a_whole_input_is_split_by_the_layer(ranks, rng):
    """With input_is_parallel=False, each rank uses its part, and has all input gradients."""
    cases = draw_in_two_precisions(rng, KEPT, SPLIT, input_is_parallel=False)

    check_layers(ranks, ROW, 4, cases)


@exercise("phase2/RowParallelLinear", points=0.5)
def test_a_row_parallel_layer_sends_no_weights(ranks, rng):
    """One forward and backward sends fewer bytes than a rank's part of the weight."""
    check_traffic(ranks, ROW, draw(rng, WIDE, WIDE, ()))


def check_traffic(ranks, name, drawn):
    seen = run_layers(ranks, name, 2, [(drawn, {})])

    why = SENDS_WEIGHTS.format(f"{WEIGHT_BYTES:,}")
    raise_mistake(too_many_bytes(seen, WEIGHT_BYTES, why, GUIDE))
    judge_layers(name, seen, [(drawn, {})])
