"""Visible tests of the 1F1B pipeline: stages with one weight each."""

from functools import partial

from gradsync.testing import assert_rank_by_rank, each, exercise, raise_mistake
from gradsync.testing.traffic import too_many_bytes
from gradsync.text import listed
from support import small_pipelines
from support.pipeline_steps import check_modes
from support.rules.pipelines import GUIDE, diagnose_1f1b, kept_on_some_ranks, too_many_alive
from support.rules.wrong_results import differs_from_one_process, ends_with
from support.small_pipelines import check_gradients, check_loss

STEP = "pipeline_1f1b"
run = partial(small_pipelines.run, step=STEP)
run_each = partial(small_pipelines.run_each, step=STEP)
SIX = {"samples": [1.0] * 6, "targets": [5.0] * 6, "sizes": [1] * 6}  # the outputs are 6


@exercise("phase3/pipeline_1f1b", points=1)
def test_the_stages_have_the_whole_batchs_gradients(ranks):
    """The stages multiply by 2 and 3; inputs are 1 and 1, then 2; targets 5 and 5, then 10.

    The outputs are 6, 6 and 12, off by 1, 1 and 2. The gradient of the mean squared error is 12
    for the first stage's weight and 8 for the second's.
    """
    last = ("last", (8.0, 16.0 / 3))
    even = [("summed", (36.0, 24.0)), last]
    uneven = [("equally", (15.0, 10.0)), ("summed", (30.0, 20.0)), last]

    check_gradients(run(ranks, sizes=[1, 1, 1]), 12.0, 8.0, wrong=even)
    check_gradients(run(ranks, sizes=[2, 1]), 12.0, 8.0, wrong=uneven)


@exercise("phase3/pipeline_1f1b", points=1)
def test_rank_0_of_3_runs_two_forwards_ahead(ranks):
    """Of 6 microbatches, rank 0 runs FFFBFBFBFBBB, rank 1 FFBFBFBFBFBB and rank 2 FBFBFBFBFBFB."""
    seen = run(ranks, weights=[2.0, 1.0, 3.0], **SIX)

    raise_mistake(diagnose_1f1b([kept["order"] for kept in seen], 6))
    check_gradients(seen, 6.0, 12.0, 4.0)


@exercise("phase3/pipeline_1f1b", points=1)
def test_rank_0_of_3_keeps_three_microbatches(ranks):
    """Of 6 microbatches, ranks 0, 1 and 2 keep the activations of at most 3, 2 and 1."""
    seen = run(ranks, weights=[2.0, 1.0, 3.0], **SIX)

    raise_mistake(diagnose_1f1b([kept["order"] for kept in seen], 6))
    raise_mistake(too_many_alive(seen))


@exercise("phase3/pipeline_1f1b", points=1)
def test_fewer_microbatches_than_ranks(ranks):
    """One microbatch, or two, on three ranks."""
    weights = [1.0, 2.0, 3.0]

    for seen in run_each(ranks, {"sizes": [3]}, {"sizes": [2, 1]}, weights=weights):
        check_gradients(seen, 24.0, 12.0, 8.0)


@exercise("phase3/pipeline_1f1b", points=1)
def test_a_single_rank(ranks):
    """One stage of 6 on a single rank."""
    check_gradients(run(ranks, weights=[6.0]), 4.0)


@exercise("phase3/pipeline_1f1b", points=1)
def test_two_steps(ranks):
    """With learning rate 1/8, the weights go from 2 and 3 to 0.5 and 2, then to 4.5 and 3.

    With the gradients of the first step, the second one would lead to 3 and 2.
    """
    seen = run(ranks, steps=2)

    weights = each(seen, lambda kept: kept["weight"])
    still = "The weights did not change: the optimizer took no step. Call optimizer.step()."
    assert_rank_by_rank(
        weights,
        [4.5, 3.0],
        mistakes=[
            ends_with([2.0, 3.0], "does-not-learn", still, GUIDE),
            kept_on_some_ranks([3.0, 2.0]),
            differs_from_one_process(GUIDE, f"after two steps they are {listed(weights)} by rank"),
        ],
    )


@exercise("phase3/pipeline_1f1b", points=1)
def test_every_rank_returns_the_loss(ranks):
    """The squared errors are 1 and 1, then 4: all three ranks return their mean, the float 2.0."""
    check_loss(run(ranks, weights=[2.0, 1.0, 3.0]), STEP)


@exercise("phase3/pipeline_1f1b", points=1)
def test_the_stages_stay_in_their_mode(ranks):
    """A stage in training or evaluation mode runs in this mode, and is in it afterwards."""
    cases = [{"training": True}, {"training": False}]

    for seen, case in zip(run_each(ranks, *cases), cases, strict=True):
        check_modes(seen, STEP, **case)
        check_gradients(seen, 12.0, 8.0)


@exercise("phase3/pipeline_1f1b", points=1)
def test_only_the_ends_read_their_data(ranks):
    """On other ranks the inputs and targets are wrong tensors, of a size of no microbatch."""
    seen = run(ranks, weights=[2.0, 1.0, 3.0], stray=True)

    check_gradients(seen, 12.0, 24.0, 8.0)


@exercise("phase3/pipeline_1f1b", points=1)
def test_activations_of_any_shape_and_dtype(ranks):
    """A sample's activations have five dimensions, or are of float64 with integers as inputs.

    Those of a frozen stage are integers: 2, 2 and 4.
    """
    doubles = {"between": [1, 1], "dtype": "float64", "inputs": "int64"}
    integers = {"integers": [0], "frozen": [0]}

    *floats, last = run_each(ranks, {"between": [1, 1, 1, 1, 1]}, doubles, integers)

    for seen in floats:
        check_gradients(seen, 12.0, 8.0)
    check_gradients(last, None, 8.0)


@exercise("phase3/pipeline_1f1b", points=1)
def test_a_stage_may_be_frozen(ranks):
    """The first or the second of three stages is frozen: the others' gradients are the same."""
    first, second = run_each(ranks, {"frozen": [0]}, {"frozen": [1]}, weights=[2.0, 1.0, 3.0])

    check_gradients(first, None, 24.0, 8.0)
    check_gradients(second, 12.0, None, 8.0)


@exercise("phase3/pipeline_1f1b", points=1)
def test_only_activations_are_sent(ranks):
    """A sample has 1000 inputs and one activation: the ranks send less than half of the inputs."""
    seen = run(ranks, width=1000)

    text = (
        "That is a large part of the batch itself. Send only the outputs of a stage (here one "
        "number per sample) to the next rank, and their gradients back."
    )
    raise_mistake(too_many_bytes(seen, 3 * 1000 * 4 // 2, text, GUIDE))
    check_gradients(seen, 12.0, 8.0)
