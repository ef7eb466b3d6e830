"""Visible tests of make_groups: four ranks in two rows."""

from gradsync.testing import exercise, raise_mistake
from support.probes.rank_groups import probe_groups, refusals
from support.rules.rank_groups import accepted, created_differently, groups_mistake


@exercise("phase3/make_groups", points=1)
def test_four_ranks_in_two_rows(ranks):
    """Rows 0, 1 and 2, 3: rank 2's tensor group is [2, 3], and its data group [0, 2]."""
    seen = ranks(probe_groups, 4, mistakes=[created_differently], data=2, tensor=2)

    raise_mistake(groups_mistake(seen, 2, 2))


@exercise("phase3/make_groups", points=1)
def test_three_ranks_in_one_row(ranks):
    """With data=1 and tensor=3, all ranks are a tensor group, and each is a data group."""
    seen = ranks(probe_groups, 3, mistakes=[created_differently], data=1, tensor=3)

    raise_mistake(groups_mistake(seen, 1, 3))


@exercise("phase3/make_groups", points=1)
def test_a_shape_that_does_not_fit_is_refused(ranks):
    """On two ranks, data=2 and tensor=2 raise a ValueError; so do 1 and 1."""

    def probe(model_parallel, shapes):
        return refusals(model_parallel, shapes)

    raise_mistake(accepted(ranks(probe, 2, shapes=[(2, 2), (1, 1)]), [(2, 2), (1, 1)]))
