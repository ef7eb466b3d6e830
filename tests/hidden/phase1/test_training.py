"""The complete training loop, on random samples."""

from gradsync.testing import exercise
from support.probes.training import draw_samples
from support.promises import training
from support.promises.training import PHASE1


@exercise("phase1/train", points=2)
def test_each_rank_trains_on_its_share_in_the_order_of_the_epoch(ranks, rng):
    """Each rank trains on its share, in an order that depends on the epoch and the seed."""
    data = draw_samples(rng, 41), draw_samples(rng, 4)
    training.own_share_in_order_of_epoch(ranks, PHASE1, data, seed=int(rng.integers(1, 1000)))


@exercise("phase1/train", points=2)
def test_the_weights_equal_those_of_one_process(ranks, rng):
    """All ranks start from rank 0's weights, and end with the weights of one process."""
    data = draw_samples(rng, 12), draw_samples(rng, 6)
    training.weights_of_one_process(ranks, PHASE1, data, seeds=[11, 5, 6])


@exercise("phase1/train", points=2)
def test_the_history_has_the_numbers_of_each_epoch(ranks, rng):
    """The history has an entry for each epoch: the mean train loss and the validation results."""
    training.numbers_of_each_epoch(ranks, PHASE1, (draw_samples(rng, 10), draw_samples(rng, 6)))


@exercise("phase1/train", points=1)
def test_only_rank_0_prints(ranks, rng):
    """Rank 0 prints a line for each epoch, and the other ranks print nothing."""
    data = draw_samples(rng, 8), draw_samples(rng, 6)
    training.only_rank_0_prints(ranks, PHASE1, data, world_size=3)
