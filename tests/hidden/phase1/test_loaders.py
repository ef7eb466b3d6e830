"""The data loaders, with random seeds."""

from gradsync.testing import exercise
from support.promises import loaders


@exercise("phase1/create_dataloaders", points=2)
def test_one_rank_has_plain_loaders(ranks, rng):
    """With one rank, train is shuffled in an order that depends on the seed; val is in order."""
    loaders.plain_on_one_rank(ranks, (90, 31), 8, seed=int(rng.integers(1, 1000)))


@exercise("phase1/create_dataloaders", points=2)
def test_the_batch_size_is_per_rank_and_nothing_is_dropped(ranks):
    """Each rank gets batches of `batch_size`, with a smaller last one if samples are left over.

    The other settings are passed on to both loaders, and no worker starts before a pass.
    """
    loaders.settings_used(ranks)
    loaders.batches_of_each_rank(ranks, (50, 25), 4, world_sizes=(1, 2, 3))


@exercise("phase1/create_dataloaders", points=3)
def test_every_rank_loads_its_own_share(ranks, rng):
    """With N ranks, each loader yields the rank's padded share: train shuffled, val in order."""
    loaders.own_share_on_every_rank(ranks, (96, 31), 4, seed=int(rng.integers(1000)))
