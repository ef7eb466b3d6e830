"""Visible tests of training without interruption: few samples, few epochs."""

import numpy as np

from gradsync.testing import check, exercise, raise_mistake
from support.probes.training import Case, draw_samples
from support.promises import training
from support.promises.training import PHASE2
from support.rules.accumulation import uneven_microbatches
from support.rules.histories import kept_from_earlier_calls
from support.rules.training import batches_divided


def data_of(samples, known=4):
    """Return training samples and `known` validation samples, with 4 numbers each."""
    rng = np.random.default_rng(1)
    return draw_samples(rng, samples), draw_samples(rng, known)


@exercise("phase2/train", points=1)
def test_every_epoch_uses_the_shares_in_a_new_order(ranks):
    """11 samples on two ranks: each gets 6 in an epoch, in an order of the epoch and the seed."""
    training.own_share_in_order_of_epoch(ranks, PHASE2, data_of(11), seed=4)


@exercise("phase2/train", points=1)
def test_the_model_trains_in_training_mode(ranks):
    """A model that is in evaluation mode is switched to training mode, in each of two epochs."""
    training.in_training_mode(ranks, PHASE2, data_of(8))


@exercise("phase2/train", points=1)
def test_two_ranks_train_like_one_process(ranks):
    """The ranks start with different weights, and end like one process with rank 0's weights.

    Two ranks with 4 samples each, in three epochs of one step, equal a process with all 8.
    """
    training.weights_of_one_process(ranks, PHASE2, data_of(8), seeds=[11, 5])


@exercise("phase2/train", points=1)
def test_batch_size_is_the_batch_of_each_rank(ranks):
    """With batch_size=4 and 6 samples on each rank, the batches have 4 and 2 samples."""
    seen = training.train_as(ranks, PHASE2, Case(data_of(12), [1, 1], epochs=1, batch_size=4))

    raise_mistake(batches_divided(seen, 4, PHASE2.training))
    raise_mistake(uneven_microbatches(seen, [4, 2], 1))


@exercise("phase2/train", points=1)
def test_the_history_has_the_numbers_of_each_epoch(ranks):
    """Three epochs have three entries: the mean train loss, and the results after the epoch.

    Each rank trains on batches of 4 samples and 1, and the ranks evaluate 4 and 3 samples.
    """
    training.numbers_of_each_epoch(ranks, PHASE2, data_of(10, known=7))


@exercise("phase2/train", points=1)
def test_each_call_has_its_own_history(ranks):
    """A second call returns a list of its own epochs, without those of the first."""
    options = {"data": data_of(4), "seeds": [1, 1], "epochs": 1, "batch_size": 4}

    runs = training.train_in_turn(ranks, PHASE2, 2, options, options)

    raise_mistake(kept_from_earlier_calls(runs, PHASE2.training))
    check(
        all(len(value["history"]) == 1 for run in runs for value in run),
        "wrong-signature",
        "Called with epochs=1, train must return a list with one entry, on every rank.",
        guide=PHASE2.training,
    )


@exercise("phase2/train", points=1)
def test_only_rank_0_prints(ranks):
    """In three epochs rank 0 prints at least three lines, and rank 1 none."""
    training.only_rank_0_prints(ranks, PHASE2, data_of(8), world_size=2)


@exercise("phase2/train", points=1)
def test_microbatches_do_not_change_the_result(ranks):
    """Batches of 4 and 2 samples, split into 3 microbatches: 2, 1, 1 and 1, 1; equal weights."""
    training.microbatches_do_not_change_the_result(ranks, data_of(12), world_size=2, parts=3)
