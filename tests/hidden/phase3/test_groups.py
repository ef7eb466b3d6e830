"""Groups of ranks: rows that split a model, and columns that split the data."""

import pytest

from gradsync.testing import exercise, raise_mistake
from support.probes.rank_groups import probe_groups, refusals
from support.rules.rank_groups import accepted, created_differently, groups_mistake


def run(ranks, data, tensor):
    return ranks(
        probe_groups, data * tensor, mistakes=[created_differently], data=data, tensor=tensor
    )


@pytest.mark.parametrize(("data", "tensor"), [(2, 3), (3, 2)])
@exercise("phase3/make_groups", points=1.5)
def test_rows_and_columns_of_six_ranks(ranks, data, tensor):
    """A rank's tensor group is its row and its data group its column; both can be used."""
    raise_mistake(groups_mistake(run(ranks, data, tensor), data, tensor))


@exercise("phase3/make_groups", points=0.75)
def test_a_single_row_or_column(ranks, rng):
    """With data=1 or tensor=1, one group has all ranks, and the other only one."""
    size = int(rng.integers(2, 5))
    for data, tensor in ((1, size), (size, 1)):
        raise_mistake(groups_mistake(run(ranks, data, tensor), data, tensor))


@exercise("phase3/make_groups", points=0.75)
def test_shapes_that_do_not_fit_are_refused(ranks):
    """Any data and tensor whose product is not the number of ranks raise a ValueError."""
    shapes = [(2, 2), (1, 2), (3, 0), (2, 1)]

    def probe(model_parallel, shapes):
        return refusals(model_parallel, shapes)

    raise_mistake(accepted(ranks(probe, 3, shapes=shapes), shapes))
