"""Linear layers split over N ranks: the sizes that are refused, and the weights of new layers."""

from functools import partial

import torch

from gradsync.testing import exercise, raise_mistake
from support.probes import raised
from support.probes.returned import tensor_returned
from support.rules.parallel_layers import (
    diagnose_beginning,
    diagnose_gathering,
    diagnose_refusals,
)
from support.rules.waiting import nobody_waited

GUIDE = "Tensor parallelism"
GATHERED = "Gather the parts in the order of the ranks, on every rank."
SUMMED = (
    "A parameter that is complete on every rank, such as a bias added to a sum, must start with "
    "the same values on all ranks."
)


@exercise("phase2/ColumnParallelLinear", points=0.25)
def test_outputs_that_cannot_be_split_evenly_are_refused(ranks):
    """out_features that N does not divide raise a ValueError; in_features may be any number."""

    def probe(model_parallel, cases):
        return answers(model_parallel.ColumnParallelLinear, cases)

    raise_mistake(
        diagnose_refusals(ranks(probe, 2, cases=[(4, 7), (4, 1), (3, 2)]), "out_features")
    )


@exercise("phase2/ColumnParallelLinear", points=0.25)
def test_a_new_column_parallel_layer_starts_with_random_weights(ranks):
    """A new layer has random weights, and gathers the same outputs on all ranks."""

    def probe(rank, model_parallel):
        return beginning(model_parallel.ColumnParallelLinear, rank, gather_output=True)

    seen = ranks(probe, 2)

    raise_mistake(nobody_waited(seen, GUIDE))
    raise_mistake(diagnose_gathering(seen, 6))
    raise_mistake(diagnose_beginning(seen, GATHERED))


@exercise("phase2/RowParallelLinear", points=0.25)
def test_inputs_that_cannot_be_split_evenly_are_refused(ranks):
    """in_features that N does not divide raise a ValueError; out_features may be any number."""

    def probe(model_parallel, cases):
        return answers(model_parallel.RowParallelLinear, cases)

    raise_mistake(diagnose_refusals(ranks(probe, 2, cases=[(7, 4), (1, 4), (2, 3)]), "in_features"))


@exercise("phase2/RowParallelLinear", points=0.25)
def test_a_new_row_parallel_layer_starts_with_random_weights(ranks):
    """A new layer has random weights, and the same bias on every rank."""

    def probe(rank, model_parallel):
        return beginning(model_parallel.RowParallelLinear, rank, input_is_parallel=False)

    seen = ranks(probe, 2)

    raise_mistake(nobody_waited(seen, GUIDE))
    raise_mistake(diagnose_beginning(seen, SUMMED))


def answers(layer_class, cases):
    """Return the error raised by the constructor of each of these layers, or None."""
    errors = []
    for inputs, outputs in cases:
        error = raised(partial(layer_class, inputs, outputs))
        kind = ValueError if isinstance(error, ValueError) else type(error)  # subclasses count too
        errors.append(f"{kind.__name__}: {error}" if error else None)
    return errors


def beginning(layer_class, rank, **options):
    """Return a new layer's outputs for ones, and its weight, with a different seed on each rank."""
    torch.manual_seed(rank)
    torch.set_deterministic_debug_mode("error")  # fills uninitialised memory with NaN
    layer = layer_class(4, 6, **options)
    torch.set_deterministic_debug_mode("default")
    weight = max(layer.parameters(), key=torch.numel)
    outputs = tensor_returned(layer(torch.ones(2, 4)), "the layer's forward")
    return {"outputs": outputs, "weight": weight.detach().reshape(-1)}
