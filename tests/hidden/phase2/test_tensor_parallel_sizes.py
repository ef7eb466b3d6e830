"""Linear layers split over N ranks: the sizes that are refused, and the weights of new layers."""

from gradsync.testing import exercise, raise_mistake
from support.probes.parallel_layers import COLUMN, ROW, answers
from support.rules.parallel_layers import diagnose_refusals
from support.rules.split_layers import check_beginning


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
    check_beginning(ranks, COLUMN, gather_output=True)


@exercise("phase2/RowParallelLinear", points=0.25)
def test_inputs_that_cannot_be_split_evenly_are_refused(ranks):
    """in_features that N does not divide raise a ValueError; out_features may be any number."""

    def probe(model_parallel, cases):
        return answers(model_parallel.RowParallelLinear, cases)

    raise_mistake(diagnose_refusals(ranks(probe, 2, cases=[(7, 4), (1, 4), (2, 3)]), "in_features"))


@exercise("phase2/RowParallelLinear", points=0.25)
def test_a_new_row_parallel_layer_starts_with_random_weights(ranks):
    """A new layer has random weights, and the same bias on every rank."""
    check_beginning(ranks, ROW, input_is_parallel=False)
