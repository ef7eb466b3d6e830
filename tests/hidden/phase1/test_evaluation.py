"""Evaluating a model, on random samples."""

from gradsync.testing import exercise
from support.promises import evaluation


def draw(rng, counts):
    """Return telling shares of these sizes."""
    while True:
        sizes = [count + evaluation.UNASKED for count in counts]
        shares = [(rng.standard_normal((n, 4)) * 5, rng.integers(0, 3, n)) for n in sizes]
        if evaluation.is_telling(shares):
            return shares


@exercise("phase1/evaluate", points=2.5)
def test_every_sample_of_every_rank_counts_the_same(ranks, rng):
    """Every sample of every rank counts the same, even in unequal shares and small batches."""
    evaluation.every_sample_counts_the_same(ranks, draw(rng, [11, 2, 5, 6]))


@exercise("phase1/evaluate", points=1)
def test_a_rank_may_have_no_samples(ranks, rng):
    """A rank without any samples returns the same numbers as the other ranks."""
    evaluation.rank_without_samples(ranks, draw(rng, [3, 0, 9]))


@exercise("phase1/evaluate", points=1.5)
def test_the_evaluation_does_not_change_the_model(ranks, rng):
    """evaluate uses evaluation mode, tracks no gradients, and leaves existing gradients alone."""
    evaluation.model_unchanged(ranks, draw(rng, [5, 3]))


@exercise("phase1/evaluate", points=2)
def test_the_former_mode_is_restored(ranks, rng):
    """Afterwards the model is in the mode that it had before, training or evaluation."""
    evaluation.former_mode_restored(ranks, draw(rng, [5, 3]))
