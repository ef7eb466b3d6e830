"""Linear layers in parts: which sizes can be split, and which can not."""

from functools import partial

from gradsync.diagnose.parallel_layers import diagnose_refusals
from gradsync.probes import raised
from gradsync.testing import exercise, hold


@exercise("phase2/ColumnParallelLinear", points=0.5)
def test_outputs_that_do_not_divide_are_refused(ranks):
    """out_features that N does not divide are a ValueError; in_features need not divide."""

    def probe(model_parallel, cases):
        return answers(model_parallel.ColumnParallelLinear, cases)

    seen = ranks(probe, 2, cases=[(4, 7), (4, 1), (3, 2)])

    hold(diagnose_refusals(seen, "out_features"))


@exercise("phase2/RowParallelLinear", points=0.5)
def test_inputs_that_do_not_divide_are_refused(ranks):
    """in_features that N does not divide are a ValueError; out_features need not divide."""

    def probe(model_parallel, cases):
        return answers(model_parallel.RowParallelLinear, cases)

    seen = ranks(probe, 2, cases=[(7, 4), (1, 4), (2, 3)])

    hold(diagnose_refusals(seen, "in_features"))


def answers(layer_class, cases):
    """Return the error that making each of these layers ends in, None for one that is made."""
    told = []
    for inputs, outputs in cases:
        error = raised(partial(layer_class, inputs, outputs))
        kind = ValueError if isinstance(error, ValueError) else type(error)  # or one made of it
        told.append(f"{kind.__name__}: {error}" if error else None)
    return told
