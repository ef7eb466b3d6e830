"""Everything together: the training loop."""

import torch
from torch import nn

from gradsync.diagnose.training import (
    models_differ,
    other_lines,
    other_numbers,
    other_rows,
    other_samples,
    training_mistakes,
)
from gradsync.probes.training import draw_samples, one_step, spied_training
from gradsync.testing import assert_on_every_rank, each, exercise, hold

GUIDE, MODEL = "Training", "Model synchronisation"


def make_model(seed):
    torch.manual_seed(seed)
    return nn.Linear(4, 3).double()


def probe_train(rank, world_size, trainer, data, seeds, seed=3, **options):
    """Train on `data` from weights of its own seed; say what came of it."""
    info = trainer.RankInfo(rank, world_size, 0, "127.0.0.1", 29500)  # each on its own machine
    model = make_model(seeds[rank])
    return spied_training(trainer.train, info, model, data, seed=seed, **options)


@exercise("phase1/train", points=2)
def test_every_epoch_goes_its_own_way_over_the_ranks_shares(ranks, rng):
    """Each rank trains on its share, in another order in another epoch, and with another seed."""
    data = draw_samples(rng, 40), draw_samples(rng, 4)
    options = {"data": data, "seeds": [1, 1], "batch_size": 4}

    reseeded = ranks(probe_train, 2, epochs=1, seed=4, **options)
    seen = ranks(probe_train, 2, epochs=2, **options)

    headings = {"shares": "Data loaders", "epochs": "Epochs and evaluation", "guide": GUIDE}
    hold(other_samples(seen, reseeded, samples=40, **headings))


@exercise("phase1/train", points=2)
def test_ranks_that_start_apart_end_as_one_process(ranks, rng):
    """From rank 0's weights, a step on all ranks' samples ends where one process would."""
    data, seeds = (draw_samples(rng, 12), draw_samples(rng, 6)), [11, 5, 6]

    seen = ranks(probe_train, 3, data=data, seeds=seeds, epochs=1, batch_size=4)

    def weights_after(rank, scale):
        return one_step(make_model(seeds[rank]), *data, scale=scale).weights

    hold(models_differ(seen, MODEL))
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        weights_after(0, 1.0),
        mistakes=training_mistakes(
            weights_after,
            case="3 ranks with 4 samples each, one epoch of one step,",
            world_size=3,
            guide=GUIDE,
            mean="Gradient aggregation",
            start=MODEL,
        ),
    )


@exercise("phase1/train", points=2)
def test_the_history_has_the_numbers_of_each_epoch(ranks, rng):
    """An entry an epoch, with the mean train loss, and the val numbers after the training."""
    data = draw_samples(rng, 8), draw_samples(rng, 6)
    options = {"data": data, "seeds": [11, 11], "batch_size": 4}

    once = ranks(probe_train, 2, epochs=1, **options)
    thrice = ranks(probe_train, 2, epochs=3, **options)

    right = one_step(make_model(11), *data)
    hold(other_rows(thrice, GUIDE))
    hold(other_numbers(once, right.history, right.loss_before, guide=GUIDE, evaluation=GUIDE))


@exercise("phase1/train", points=1)
def test_rank_0_alone_prints(ranks, rng):
    """Rank 0 prints a line an epoch, the others nothing."""
    data = draw_samples(rng, 8), draw_samples(rng, 6)

    seen = ranks(probe_train, 3, data=data, seeds=[1, 1, 1], epochs=3, batch_size=4)

    hold(other_lines(seen, 3, GUIDE))
