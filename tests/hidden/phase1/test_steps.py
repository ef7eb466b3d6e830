"""The training step, on random batches."""

import numpy as np
import pytest

from gradsync.testing import exercise
from support.promises import steps


def draw_batches(rng, count, world_size, size, *, soft=False):
    """Return inputs (step, rank, sample, 5) and targets (step, rank, sample).

    The targets are classes, or, if they are `soft`, the probability of each class (..., 3).
    """
    shape = (count, world_size, size)
    inputs = rng.standard_normal((*shape, 5)) * 2
    return inputs, rng.dirichlet([1, 1, 1], shape) if soft else rng.integers(0, 3, shape)


@pytest.mark.parametrize("world_size", [3, 2, 1])
@exercise("phase1/train_step", points=4.5)
def test_steps_equal_those_of_one_process(ranks, rng, world_size):
    """After several steps, N ranks with B samples each have the weights of one process with N*B."""
    inputs, targets = draw_batches(rng, 4, world_size, 6)
    if world_size == 1:  # autocast does not change float64
        inputs = inputs.astype(np.float32)
    steps.steps_of_one_process(ranks, inputs, targets)
    steps.steps_in_one_order(ranks, world_size, int(rng.integers(900_000)))


@exercise("phase1/train_step", points=2)
def test_the_returned_loss_is_the_mean_over_ranks(ranks, rng):
    """Every rank returns the same float: the mean of the ranks' losses before the step."""
    steps.mean_loss_returned(ranks, *draw_batches(rng, 1, 3, 6))


@exercise("phase1/train_step", points=0.5)
def test_the_batch_is_moved_to_the_model(ranks, rng):
    """The inputs and the targets are moved to the device of the model."""
    inputs, targets = draw_batches(rng, 1, 1, 6)
    steps.batch_moved(ranks, inputs[0][0], targets[0][0])


@exercise("phase1/train_step", points=1)
def test_gradients_from_before_the_step_are_cleared(ranks, rng):
    """Gradients that exist before a step are cleared and do not change it."""
    steps.former_gradients_cleared(ranks, *draw_batches(rng, 1, 2, 6, soft=True))
