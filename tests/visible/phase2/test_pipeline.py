"""Visible tests of the pipeline: stages with one weight each."""

from dataclasses import replace

import torch
from torch import nn

from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    case_by_case,
    check,
    each,
    exercise,
    raise_mistake,
)
from gradsync.testing.traffic import too_many_bytes
from gradsync.text import full_stop, listed, no_float
from support.probes.returned import number_or_nan
from support.rules.pipelines import (
    GUIDE,
    diagnose_order,
    kept_on_some_ranks,
    pipeline_gradient_mistakes,
    pipeline_loss_mistakes,
    stages_summed,
    stepped_in_between,
)
from support.rules.waiting import nobody_waited
from support.rules.wrong_results import differs_from_one_process, ends_with

INPUTS, TARGETS = [1.0, 1.0, 2.0], [5.0, 5.0, 10.0]  # of three samples
RATE = 0.125


class Times(nn.Module):
    """Multiplies the mean of each sample by one weight; records its passes and its modes."""

    def __init__(self, weight, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.shape = shape  # of a sample's output
        self.order, self.modes = [], []

    def forward(self, inputs):
        self.order.append("forward")
        self.modes.append(self.training)
        outputs = (inputs * self.weight).flatten(1).mean(1).reshape(-1, *self.shape)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: self.order.append("backward"))
        return outputs


def probe_cases(rank, world_size, model_parallel, cases):
    """Return the result of `take_steps` for each case."""
    return [take_steps(rank, world_size, model_parallel, case) for case in cases]


def take_steps(rank, world_size, model_parallel, case):
    """Take steps with a stage on each rank, which multiplies by a weight.

    `weights` are those of the stages, `sizes` the samples of the microbatches, `between` the shape
    of a sample's activations, `stray` what a rank gets instead of data that it may not read, and
    `frozen` the ranks whose stages are frozen.
    """
    last = rank == world_size - 1
    dtype = getattr(torch, case.get("dtype", "float32"))
    stage = Times(case["weights"][rank], () if last else case.get("between", (1,))).to(dtype)
    stage.requires_grad_(rank not in case.get("frozen", ()))
    inputs = torch.tensor(INPUTS).to(getattr(torch, case.get("inputs", "float32")))[:, None]
    inputs = inputs.expand(-1, case.get("width", 1))
    parts = inputs.split(case["sizes"]), torch.tensor(TARGETS).to(dtype).split(case["sizes"])
    stray = torch.zeros(7, dtype=torch.int64) if case.get("stray") else None
    microbatches = [
        (x if rank == 0 else stray, y if last else stray) for x, y in zip(*parts, strict=True)
    ]
    optimizer = torch.optim.SGD(stage.parameters(), lr=RATE)
    losses, loss_fn = [], nn.MSELoss()
    for _ in range(case.get("steps", 1)):
        stage.order.clear()
        losses.append(model_parallel.pipeline_train_step(stage, microbatches, loss_fn, optimizer))
    return {
        "loss": number_or_nan(losses[0]) if losses[0] is not None else None,
        "kind": "float" if isinstance(losses[0], float) else type(losses[0]).__name__,
        "gradient": {} if rank in case.get("frozen", ()) else {"weight": stage.weight.grad},
        "weight": stage.weight.item(),
        "order": stage.order,
        "trains": all(stage.modes) and stage.training,
    }


def read_stray_data(seen, _expected):
    """Recognise a rank that fails because it reads data that only others may read."""
    if seen.failure is None or seen.failure.status != "error":
        return None
    text = (
        f"{full_stop(seen.failure.diagnosis.explanation)} In this test the microbatches contain "
        "other tensors where a rank must not read them: only rank 0 reads the inputs, and only the "
        "last rank the targets. Decide by the rank, not by whether they are None."
    )
    return replace(seen.failure.diagnosis, explanation=text, guide=GUIDE)


def run_each(ranks, *cases, weights=(2.0, 3.0)):
    """Take steps in each case, by default with the stages 2 and 3; return each observation.

    By default, the microbatches have two samples and one.
    """
    given = [{"weights": list(weights), "sizes": [2, 1], **case} for case in cases]
    stray = [read_stray_data] * any("stray" in case for case in cases)
    rules = [stages_summed, stepped_in_between, *stray]
    seen = ranks(probe_cases, len(weights), cases=given, mistakes=rules)
    raise_mistake(nobody_waited(seen, GUIDE))
    return case_by_case(seen, len(cases))


def run(ranks, *, weights=(2.0, 3.0), **case):
    [seen] = run_each(ranks, case, weights=weights)
    return seen


def check_gradients(seen, *expected, wrong=()):
    """Compare each stage's gradient with a number; None: the stage is frozen."""

    def of_stages(numbers):
        return [{} if n is None else {"weight": torch.tensor(n)} for n in numbers]

    gradients = each(seen, lambda kept: kept["gradient"])
    mistakes = pipeline_gradient_mistakes([(how, of_stages(of)) for how, of in wrong])
    assert_rank_by_rank(gradients, of_stages(expected), mistakes=mistakes)


@exercise("phase2/pipeline_train_step", points=1)
def test_the_stages_have_the_whole_batchs_gradients(ranks):
    """The stages multiply by 2 and 3; inputs are 1 and 1, then 2; targets 5 and 5, then 10.

    The outputs are 6, 6 and 12, off by 1, 1 and 2. The gradient of the mean squared error is 12
    for the first stage's weight and 8 for the second's.
    """
    last = ("last", (8.0, 16.0 / 3))
    even = [("crossed", (10.0, 8.0)), ("summed", (36.0, 24.0)), last]
    uneven = [("equally", (15.0, 10.0)), ("summed", (30.0, 20.0)), last]

    # First alone: with unequal sizes, gradients of another microbatch do not even fit.
    check_gradients(run(ranks, sizes=[1, 1, 1]), 12.0, 8.0, wrong=even)
    unequal, single = run_each(ranks, {"sizes": [2, 1]}, {"sizes": [3]})
    check_gradients(unequal, 12.0, 8.0, wrong=uneven)
    check_gradients(single, 12.0, 8.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_any_number_of_ranks(ranks):
    """Stages of 2, 1 and 3 on three ranks; one stage of 6 on a single rank."""
    check_gradients(run(ranks, weights=[2.0, 1.0, 3.0]), 12.0, 24.0, 8.0)
    check_gradients(run(ranks, weights=[6.0]), 4.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_each_stage_takes_a_step(ranks):
    """A step with learning rate 1/8 changes the weights from 2 to 0.5 and from 3 to 2."""
    seen = run(ranks)

    weights = each(seen, lambda kept: kept["weight"])
    still = "The weights did not change: the optimizer took no step. Call optimizer.step()."
    assert_rank_by_rank(
        weights,
        [0.5, 2.0],
        mistakes=[
            ends_with([2.0, 3.0], "does-not-learn", still, GUIDE),
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

    losses = each(seen, lambda kept: kept["loss"])
    kinds = [kept["kind"] for kept in seen]
    known = {"float"} if kinds[-1] == "NoneType" else {"float", "NoneType"}
    wrong = [rank for rank, kind in enumerate(kinds) if kind not in known]
    returned = no_float("pipeline_train_step", [kinds[rank] for rank in wrong])
    check(not wrong, "wrong-signature", returned, ranks=wrong, guide=GUIDE)
    assert_on_every_rank(losses, 2.0, mistakes=pipeline_loss_mistakes(equally=2.5, summed=5.0))


@exercise("phase2/pipeline_train_step", points=1)
def test_all_forwards_come_before_all_backwards(ranks):
    """Both stages run forward for both microbatches before they run backward."""
    seen = run(ranks)

    raise_mistake(diagnose_order([kept["order"] for kept in seen], 2))


@exercise("phase2/pipeline_train_step", points=1)
def test_the_stages_stay_in_training_mode(ranks):
    """A stage in training mode runs in training mode, and is in it afterwards."""
    seen = run(ranks)

    other = [rank for rank, kept in enumerate(seen) if not kept["trains"]]
    check(
        not other,
        "mode-not-restored",
        "pipeline_train_step switches the stages from training to evaluation mode, where dropout, "
        "for example, does nothing. Leave the mode as it is.",
        ranks=other,
        guide=GUIDE,
    )
    check_gradients(seen, 12.0, 8.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_only_the_ends_read_their_data(ranks):
    """On other ranks the inputs and targets are wrong tensors, of a size of no microbatch."""
    seen = run(ranks, weights=[2.0, 1.0, 3.0], stray=True)

    check_gradients(seen, 12.0, 24.0, 8.0)


@exercise("phase2/pipeline_train_step", points=1)
def test_activations_of_any_shape_and_dtype(ranks):
    """A sample's activations have five dimensions, or are of float64 with integers as inputs."""
    doubles = {"between": [1, 1], "dtype": "float64", "inputs": "int64"}

    for seen in run_each(ranks, {"between": [1, 1, 1, 1, 1]}, doubles):
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
