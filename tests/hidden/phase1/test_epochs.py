"""One training epoch, on random samples."""

from gradsync.testing import exercise
from support.promises import epochs


def draw(rng, count):
    """Return inputs (sample, 4) and targets (sample,), whose losses vary a lot."""
    return rng.standard_normal((count, 4)) * 5, rng.integers(0, 3, count)


@exercise("phase1/train_epoch", points=1.5)
def test_the_epoch_of_the_sampler_is_set(ranks, rng):
    """train_epoch sets the sampler's epoch before the pass, even for epoch 0."""
    epochs.epoch_set(ranks, [draw(rng, 8), draw(rng, 8)], epochs=(int(rng.integers(1, 9)), 0))


@exercise("phase1/train_epoch", points=2.5)
def test_the_loss_is_the_mean_over_all_samples(ranks, rng):
    """The returned loss is the mean over all ranks' samples, so a smaller batch counts less."""
    epochs.mean_loss_returned(ranks, draw(rng, 26), world_size=3)


@exercise("phase1/train_epoch", points=1)
def test_the_model_is_trained_in_training_mode(ranks, rng):
    """A model in evaluation mode is switched to training mode before training."""
    epochs.trained_in_training_mode(ranks, draw(rng, 16))


@exercise("phase1/train_epoch", points=1)
def test_a_sampler_without_set_epoch_works(ranks, rng):
    """A sampler without `set_epoch` works, and train_epoch iterates over the loader only once."""
    epochs.one_pass_without_set_epoch(ranks, draw(rng, 8))
