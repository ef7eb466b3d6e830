"""Linear layers in parts: which sizes can be split, which can not, and how a new layer begins."""

from functools import partial

import torch

from gradsync.diagnose.parallel_layers import (
    diagnose_beginning,
    diagnose_gathering,
    diagnose_refusals,
)
from gradsync.diagnose.waiting import nobody_waited
from gradsync.probes import raised
from gradsync.probes.returned import tensor_of
from gradsync.testing import exercise, hold

GUIDE = "Tensor parallelism"
GATHERED = "The parts are gathered in the order of their ranks, on every rank"
SUMMED = (
    "What every rank holds whole, as a bias that is added to a sum, has to begin the same on all "
    "of them"
)


@exercise("phase2/ColumnParallelLinear", points=0.25)
def test_outputs_that_do_not_divide_are_refused(ranks):
    """out_features that N does not divide are a ValueError; in_features need not divide."""

    def probe(model_parallel, cases):
        return answers(model_parallel.ColumnParallelLinear, cases)

    hold(diagnose_refusals(ranks(probe, 2, cases=[(4, 7), (4, 1), (3, 2)]), "out_features"))


@exercise("phase2/ColumnParallelLinear", points=0.25)
def test_a_new_column_parallel_layer_begins_with_random_weights(ranks):
    """A new layer has random weights, and all ranks gather the same outputs from it."""

    def probe(rank, model_parallel):
        return beginning(model_parallel.ColumnParallelLinear, rank, gather_output=True)

    seen = ranks(probe, 2)

    hold(nobody_waited(seen, GUIDE))
    hold(diagnose_gathering(seen, 6))
    hold(diagnose_beginning(seen, GATHERED))


@exercise("phase2/RowParallelLinear", points=0.25)
def test_inputs_that_do_not_divide_are_refused(ranks):
    """in_features that N does not divide are a ValueError; out_features need not divide."""

    def probe(model_parallel, cases):
        return answers(model_parallel.RowParallelLinear, cases)

    hold(diagnose_refusals(ranks(probe, 2, cases=[(7, 4), (1, 4), (2, 3)]), "in_features"))


@exercise("phase2/RowParallelLinear", points=0.25)
def test_a_new_row_parallel_layer_begins_with_random_weights(ranks):
    """A new layer has random weights, and the same bias on every rank."""

    def probe(rank, model_parallel):
        return beginning(model_parallel.RowParallelLinear, rank, input_is_parallel=False)

    seen = ranks(probe, 2)

    hold(nobody_waited(seen, GUIDE))
    hold(diagnose_beginning(seen, SUMMED))


def answers(layer_class, cases):
    """Return the error that making each of these layers ends in, None for one that is made."""
    told = []
    for inputs, outputs in cases:
        error = raised(partial(layer_class, inputs, outputs))
        kind = ValueError if isinstance(error, ValueError) else type(error)  # or one made of it
        told.append(f"{kind.__name__}: {error}" if error else None)
    return told


def beginning(layer_class, rank, **options):
    """Return what a new layer makes of ones, and its weight, under a seed of the rank's own."""
    torch.manual_seed(rank)
    torch.set_deterministic_debug_mode("error")  # memory that nobody wrote to is full of NaN
    layer = layer_class(4, 6, **options)
    torch.set_deterministic_debug_mode("default")
    weight = max(layer.parameters(), key=torch.numel)
    outputs = tensor_of(layer(torch.ones(2, 4)), "what the layer's forward returns")
    return {"outputs": outputs, "weight": weight.detach().reshape(-1)}
