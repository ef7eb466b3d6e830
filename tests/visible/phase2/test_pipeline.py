"""Visible tests of the pipeline: stages with one weight each."""

from functools import partial

from gradsync.testing import assert_rank_by_rank, each, exercise, raise_mistake
from gradsync.testing.traffic import too_many_bytes
from gradsync.text import listed
from support import small_pipelines
from support.pipeline_steps import check_modes
from support.rules.pipelines import GUIDE, diagnose_order, idle_stages, kept_on_some_ranks
from support.rules.wrong_results import differs_from_one_process
from support.small_pipelines import check_gradients, check_loss

STEP = "pipeline_train_step"
run = partial(small_pipelines.run, step=STEP)
run_each = partial(small_pipelines.run_each, step=STEP)


@exercise("phase2/pipeline_train_step", points=1)
def test_the_stages_have_the_whole_batchs_gradients(ranks):
    """The stages multiply by 2 and 3; inputs are 1 and 1, then 2; targets 5 and 5, then 10.

    The outputs are 6, 6 and 12, off by 1, 1 and 2. The gradient of the mean squared error is 12
    for the first stage's weight and 8 for the second's.
    """
    last = ("last", (8.0, 16.0 / 3))
    even = [("summed", (36.0, 24.0)), last]
    uneven = [("equally", (15.0, 10.0)), ("summed", (30.0, 20.0)), last]

    # First alone: with unequal sizes, gradients of another microbatch do not even fit.
    check_gradients(run(ranks, sizes=[1, 1, 1]), 12.0, 8.0, wrong=even)
    unequal, single = run_each(ranks, {"sizes": [2, 1]}, {"sizes": [3]})
    check_gradients(unequal, 12.0, 8.0, wrong=uneven)
    check_gradients(single, 12.0, 8.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_any_number_of_ranks(ranks):
    """Stages of 1, 2 and 3 on three ranks; one stage of 6 on a single rank."""
    check_gradients(run(ranks, weights=[1.0, 2.0, 3.0]), 24.0, 12.0, 8.0)
    check_gradients(run(ranks, weights=[6.0]), 4.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_each_stage_takes_a_step(ranks):
    """A step with learning rate 1/8 changes the weights from 2 to 0.5 and from 3 to 2."""
    seen = run(ranks)

    weights = each(seen, lambda kept: kept["weight"])
    assert_rank_by_rank(
        weights,
        [0.5, 2.0],
        mistakes=[
            idle_stages([2.0, 3.0]),
            differs_from_one_process(GUIDE, f"they become {listed(weights)} by rank"),
        ],
    )


@exercise("phase2/pipeline_train_step", points=1)
def test_a_step_uses_no_gradients_of_the_step_before(ranks):
    """After the first step the outputs are 1, 1 and 2, and the gradients become -32 and -8.

    So the second step goes from 0.5 to 4.5 and from 2 to 3. With the gradients of the first step,
    which were 12 and 8, it would go to 3 and 2.
    """
    seen = run(ranks, steps=2)

    weights = each(seen, lambda kept: kept["weight"])
    assert_rank_by_rank(
        weights,
        [4.5, 3.0],
        mistakes=[
            kept_on_some_ranks([3.0, 2.0]),
            differs_from_one_process(GUIDE, f"after two steps they are {listed(weights)} by rank"),
        ],
    )


@exercise("phase2/pipeline_train_step", points=1)
def test_every_rank_returns_the_loss(ranks):
    """The squared errors are 1 and 1, then 4: all three ranks return their mean, the float 2.0."""
    seen = run(ranks, weights=[2.0, 1.0, 3.0])

    check_loss(seen, STEP)


@exercise("phase2/pipeline_train_step", points=1)
def test_all_forwards_come_before_all_backwards(ranks):
    """Both stages run forward for both microbatches before they run backward."""
    seen = run(ranks)

    raise_mistake(diagnose_order([kept["order"] for kept in seen], 2))


@exercise("phase2/pipeline_train_step", points=1)
def test_the_stages_stay_in_their_mode(ranks):
    """A stage in training or evaluation mode runs in this mode, and is in it afterwards."""
    cases = [{"training": True}, {"training": False}]

    for seen, case in zip(run_each(ranks, *cases), cases, strict=True):
        check_modes(seen, STEP, **case)
        check_gradients(seen, 12.0, 8.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_only_the_ends_read_their_data(ranks):
    """On other ranks the inputs and targets are wrong tensors, of a size of no microbatch."""
    seen = run(ranks, weights=[2.0, 1.0, 3.0], stray=True)

    check_gradients(seen, 12.0, 24.0, 8.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_activations_of_any_shape_and_dtype(ranks):
    """A sample's activations have five dimensions, or are not contiguous, or are of float64.

    Those of float64 come from integers.
    """
    doubles = {"between": [1, 1], "dtype": "float64", "inputs": "int64"}

    for seen in run_each(ranks, {"between": [1, 1, 1, 1, 1]}, {"repeated": 2}, doubles):
        check_gradients(seen, 12.0, 8.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_a_stage_may_be_frozen(ranks):
    """The first or the second of three stages is frozen: the others' gradients are the same."""
    first, second = run_each(ranks, {"frozen": [0]}, {"frozen": [1]}, weights=[2.0, 1.0, 3.0])

    check_gradients(first, None, 24.0, 8.0)
    check_gradients(second, 12.0, None, 8.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_only_activations_are_sent(ranks):
    """A sample has 1000 inputs and one activation: the ranks send less than half of the inputs."""
    seen = run(ranks, width=1000)

    text = (
        "That is a large part of the batch itself. Send only the outputs of a stage (here one "
        "number per sample) to the next rank, and their gradients back."
    )
    raise_mistake(too_many_bytes(seen, 3 * 1000 * 4 // 2, text, GUIDE))
    check_gradients(seen, 12.0, 8.0)
