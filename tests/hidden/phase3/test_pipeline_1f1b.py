"""The 1F1B pipeline: phase 2's promises, in an order that keeps few activations."""

import pytest
import torch

from gradsync.testing import exercise, raise_mistake
from support import small_pipelines
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
from support.rules.pipelines import diagnose_1f1b, too_many_alive
from support.small_pipelines import INPUTS, TARGETS

STEP = "pipeline_1f1b"


@exercise("phase3/pipeline_1f1b", points=1.25)
def test_gradients_are_the_unsplit_models(ranks, rng):
    """After a step on 4 ranks, every stage's gradients equal the unsplit model's."""
    steps = [draw_microbatches(rng, [1] * 4)]

    seen = run(ranks, STEP, 4, steps)

    check_gradients(seen, steps)


@exercise("phase3/pipeline_1f1b", points=1.75)
def test_passes_are_in_1f1b_order(ranks, rng):
    """After N - 1 - r forwards, each stage alternates, whatever the number of microbatches."""
    counts = [int(count) for count in rng.choice([3, 4, 5, 6, 7], 2, replace=False)]
    trainings = [[draw_microbatches(rng, [1] * count)] for count in counts]

    seen = run_each(ranks, STEP, 3, trainings)

    for of_one, steps, count in zip(seen, trainings, counts, strict=True):
        raise_mistake(diagnose_1f1b([kept["order"] for kept in of_one], count))
        check_gradients(of_one, steps)


@exercise("phase3/pipeline_1f1b", points=1.75)
def test_few_activations_are_kept(ranks, rng):
    """Of 8 microbatches, rank r of 4 keeps the activations of at most 4 - r at one time."""
    steps = [draw_microbatches(rng, [1] * 8)]

    seen = run(ranks, STEP, 4, steps)

    raise_mistake(diagnose_1f1b([kept["order"] for kept in seen], 8))
    raise_mistake(too_many_alive(seen))
    check_gradients(seen, steps)


@exercise("phase3/pipeline_1f1b", points=1.25)
def test_fewer_microbatches_than_ranks(ranks, rng):
    """One and two microbatches on 4 ranks, also of unequal size."""
    trainings = [[draw_microbatches(rng, sizes)] for sizes in ([3], [2, 1])]

    seen = run_each(ranks, STEP, 4, trainings)

    for of_one, steps in zip(seen, trainings, strict=True):
        check_gradients(of_one, steps)
        raise_mistake(diagnose_1f1b([kept["order"] for kept in of_one], len(steps[0])))


@exercise("phase3/pipeline_1f1b", points=0.75)
def test_microbatches_are_weighted_by_their_samples(ranks, rng):
    """Microbatches of unequal size also give the gradients of the whole batch."""
    steps = [draw_microbatches(rng, [4, 1, 2])]

    seen = run(ranks, STEP, 2, steps)

    check_gradients(seen, steps)


@pytest.mark.parametrize("world_size", [3, 1])
@exercise("phase3/pipeline_1f1b", points=0.5)
def test_every_rank_returns_the_whole_batchs_loss(ranks, rng, world_size):
    """Every rank returns a float: the mean loss over all samples, before the step."""
    steps = [draw_microbatches(rng, [3, 1])]

    seen = run(ranks, STEP, world_size, steps)

    check_losses(seen, steps, STEP)
    check_gradients(seen, steps)


@exercise("phase3/pipeline_1f1b", points=0.5)
def test_several_steps_equal_those_of_unsplit(ranks, rng):
    """After several steps, the stages' weights equal the unsplit model's, in both groups."""
    steps = [draw_microbatches(rng, sizes) for sizes in ([2, 3], [3, 1])]

    seen = run(ranks, STEP, 3, steps)

    check_weights(seen, steps)
    check_modes(seen, STEP)
    check_gradients(seen, steps)


@exercise("phase3/pipeline_1f1b", points=0.5)
def test_only_the_ends_read_their_data(ranks, rng):
    """Rank 0 reads the inputs, the last rank the targets; evaluation mode stays as it is."""
    steps = [draw_microbatches(rng, [2, 1, 1])]

    seen = run(ranks, STEP, 3, steps, stray=STRAY, training=False)

    check_modes(seen, STEP, training=False)
    check_gradients(seen, steps)


@exercise("phase3/pipeline_1f1b", points=0.25)
def test_only_activations_are_sent(ranks, rng):
    """The ranks send activations and their gradients, but no inputs and no weights."""
    steps = [draw_microbatches(rng, [4, 4], "wide")]

    seen = run(ranks, STEP, 2, steps, kind="wide")

    check_bytes(seen)
    check_gradients(seen, steps, kind="wide")


@exercise("phase3/pipeline_1f1b", points=0.25)
def test_activations_of_any_shape_and_dtype(ranks, rng):
    """Inputs may be integers; activations float64, integers of a frozen stage, or 6-dimensional."""
    steps = [draw_microbatches(rng, [2, 1], "words")]

    seen = run(ranks, STEP, 3, steps, kind="words")

    check_gradients(seen, steps, kind="words")
    first, second = rng.integers(2, 6, 2).astype(float).tolist()
    case = {"weights": [first, second], "integers": [0], "frozen": [0]}
    of_integers = small_pipelines.run(ranks, step=STEP, **case)
    x, y = torch.tensor([INPUTS, TARGETS])
    slope = 2 * (first * x * (first * second * x - y)).mean()
    small_pipelines.check_gradients(of_integers, None, slope.item())


@exercise("phase3/pipeline_1f1b", points=0.25)
def test_a_stage_may_be_frozen(ranks, rng):
    """If the first stage or a middle stage is frozen, the others' gradients are still correct."""
    trainings = [[draw_microbatches(rng, [2, 1])] for _ in range(2)]
    frozen = [list(range(*blocks)) for blocks in cuts(3)[:2]]

    seen = run_each(ranks, STEP, 3, trainings, frozen=frozen)

    for of_one, steps, blocks in zip(seen, trainings, frozen, strict=True):
        check_gradients(of_one, steps, frozen=blocks)
