"""The pipeline: its stages on N ranks train like the unsplit model on the whole batch."""

import pytest

from gradsync.testing import exercise, raise_mistake
from support.pipeline_steps import (
    STRAY,
    check_bytes,
    check_gradients,
    check_losses,
    check_modes,
    check_weights,
    run,
    run_each,
)
from support.probes.pipelines import cuts, draw_microbatches
from support.rules.pipelines import diagnose_order

STEP = "pipeline_train_step"


@exercise("phase2/pipeline_train_step", points=1.5)
def test_gradients_are_the_unsplit_models(ranks, rng):
    """After a step, every stage's gradients equal the unsplit model's on the whole batch."""
    steps = [draw_microbatches(rng, [2, 2])]

    seen = run(ranks, STEP, 4, steps)

    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=1.5)
def test_microbatches_are_weighted_by_their_samples(ranks, rng):
    """Microbatches of unequal size, or a single one, also give the gradients of the whole batch."""
    trainings = [[draw_microbatches(rng, sizes)] for sizes in ([4, 1, 2], [3])]

    seen = run_each(ranks, STEP, 2, trainings)

    for of_one, steps in zip(seen, trainings, strict=True):
        check_gradients(of_one, steps)


@pytest.mark.parametrize("world_size", [3, 1])
@exercise("phase2/pipeline_train_step", points=1)
def test_every_rank_returns_the_whole_batchs_loss(ranks, rng, world_size):
    """Every rank returns a float: the mean loss over all samples, before the step."""
    steps = [draw_microbatches(rng, [3, 1])]

    seen = run(ranks, STEP, world_size, steps)

    check_losses(seen, steps, STEP)
    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=1)
def test_several_steps_equal_those_of_unsplit(ranks, rng):
    """After several steps, the stages' weights equal the unsplit model's, in both groups."""
    steps = [draw_microbatches(rng, sizes) for sizes in ([2, 3], [3, 1])]

    seen = run(ranks, STEP, 3, steps)

    check_weights(seen, steps)
    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.75)
def test_only_the_ends_read_their_data(ranks, rng):
    """Rank 0 reads the inputs, the last rank the targets; evaluation mode stays as it is."""
    steps = [draw_microbatches(rng, [2, 1])]

    seen = run(ranks, STEP, 3, steps, stray=STRAY, training=False)

    check_modes(seen, STEP, training=False)
    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.75)
def test_all_forwards_come_before_all_backwards(ranks, rng):
    """Every stage runs forward for all microbatches before it runs backward for the first."""
    steps = [draw_microbatches(rng, [2, 1, 1])]

    seen = run(ranks, STEP, 2, steps)

    raise_mistake(diagnose_order([kept["order"] for kept in seen], 3))
    check_modes(seen, STEP)
    check_gradients(seen, steps)


@exercise("phase2/pipeline_train_step", points=0.5)
def test_only_activations_are_sent(ranks, rng):
    """The ranks send activations and their gradients, but no inputs and no weights."""
    steps = [draw_microbatches(rng, [4, 4], "wide")]

    seen = run(ranks, STEP, 2, steps, kind="wide")

    check_bytes(seen)
    check_gradients(seen, steps, kind="wide")


@exercise("phase2/pipeline_train_step", points=0.5)
def test_activations_of_any_shape_and_dtype(ranks, rng):
    """Inputs may be integers; activations may be float64, large, and have up to six dimensions."""
    steps = [draw_microbatches(rng, [2, 1], "words")]

    seen = run(ranks, STEP, 3, steps, kind="words")

    check_gradients(seen, steps, kind="words")


@exercise("phase2/pipeline_train_step", points=0.5)
def test_a_stage_may_be_frozen(ranks, rng):
    """If the first stage or a middle stage is frozen, the others' gradients are still correct."""
    trainings = [[draw_microbatches(rng, [2, 1])] for _ in range(2)]
    frozen = [list(range(*blocks)) for blocks in cuts(3)[:2]]

    seen = run_each(ranks, STEP, 3, trainings, frozen=frozen)

    for of_one, steps, blocks in zip(seen, trainings, frozen, strict=True):
        check_gradients(of_one, steps, frozen=blocks)
