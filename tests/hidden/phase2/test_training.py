"""Training without interruption: as in phase 1, and with microbatches."""

import pytest

from gradsync.testing import exercise
from support.probes.training import draw_samples
from support.promises import training
from support.promises.training import PHASE2


@exercise("phase2/train", points=0.75)
def test_every_epoch_uses_the_ranks_shares_in_a_new_order(ranks, rng):
    """Each rank trains in training mode on its share, in a new order for each epoch and seed."""
    data = draw_samples(rng, 41), draw_samples(rng, 4)
    # The last batch has 5 samples.
    training.own_share_in_order_of_epoch(ranks, PHASE2, data, seed=4, batch_size=16)
    training.in_training_mode(ranks, PHASE2, data)


@exercise("phase2/train", points=0.75)
def test_ranks_with_different_weights_train_like_one_process(ranks, rng):
    """Training starts with rank 0's weights, and its final weights equal those of one process."""
    data = draw_samples(rng, 12), draw_samples(rng, 6)
    training.weights_of_one_process(ranks, PHASE2, data, seeds=[11, 5, 6])


@exercise("phase2/train", points=0.75)
def test_the_history_has_the_numbers_of_each_epoch(ranks, rng):
    """Each epoch has an entry: its mean train loss, and the validation results at its end."""
    # Validation: 4 and 3 samples.
    training.numbers_of_each_epoch(ranks, PHASE2, (draw_samples(rng, 10), draw_samples(rng, 7)))


@exercise("phase2/train", points=0.25)
def test_only_rank_0_prints(ranks, rng):
    """Rank 0 prints a line for each epoch, and the other ranks print nothing."""
    data = draw_samples(rng, 8), draw_samples(rng, 6)
    training.only_rank_0_prints(ranks, PHASE2, data, world_size=2)


@pytest.mark.parametrize(("world_size", "parts"), [(2, 3), (1, 4)])
@exercise("phase2/train", points=1)
def test_microbatches_do_not_change_the_result(ranks, rng, world_size, parts):
    """Training with accumulation_steps uses microbatches, and ends with the same weights."""
    data = draw_samples(rng, 6 * world_size), draw_samples(rng, 4)
    training.microbatches_do_not_change_the_result(ranks, data, world_size, parts)
