"""One optimizer step from several microbatches: its weights and its loss."""

import numpy as np
import pytest
import torch

from gradsync.testing import assert_on_every_rank, by_rank, case_by_case, check, each, exercise
from gradsync.testing.rules import first_diagnosis
from gradsync.text import counted, no_float
from support.probes.accumulation import (
    LEARNING_RATE,
    MOMENTUM,
    UNEQUAL,
    Net,
    draw,
    mean_loss,
    noted_calls,
    optimizer_of,
)
from support.probes.returned import number_or_nan
from support.rules.losses import loss_mistakes
from support.rules.reductions import parameters_averaged
from support.rules.waiting import stepped_too_early, stepped_too_often
from support.rules.wrong_results import differs_from_one_process, ends_with

GUIDE = "Gradient accumulation"
CASES = {  # for each training run: samples by rank and microbatch, and whether targets are numbers
    "three ranks": [
        (UNEQUAL, False),
        ([[4, 3, 1], [2, 1, 5], [6, 1, 1]], True),
        ([[7]] * 3, False),
    ],
    "one rank": [([[1, 6, 2]], False)],
}


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def run(ranks, trainings):
    """Run trainings of (inputs, targets, sizes) in turn; return the observation of each."""
    world_size = len(trainings[0][2])
    given = [(by_rank(x, 1), by_rank(y, 1), sizes) for x, y, sizes in trainings]
    seen = ranks(probe_trainings, world_size, trainings=given)
    return case_by_case(seen, len(trainings))


def probe_trainings(rank, trainer, trainings):
    return [trained(rank, trainer, *training) for training in trainings]


def trained(rank, trainer, inputs, targets, sizes):
    """Return this rank's weights and losses after a step on each of its batches.

    `calls` are, for each step, the calls of the averager's finish and of the optimizer's step.
    """
    model = Net()
    optimizer = optimizer_of(model)
    averager = trainer.BucketedGradientAverager(model)
    losses, calls, called = [], [], noted_calls(averager, optimizer)
    for x, y in zip(inputs, targets, strict=True):
        parts = (torch.from_numpy(part[rank]).split(sizes[rank]) for part in (x, y))
        microbatches = list(zip(*parts, strict=True))
        loss = trainer.train_step_accumulated(model, microbatches, mean_loss, optimizer, averager)
        losses.append(loss)
        calls.append(called[:])
        called.clear()
    kinds = sorted({"float" if isinstance(x, float) else type(x).__name__ for x in losses})
    return {
        "weights": weights_of(model),
        "losses": [number_or_nan(loss) for loss in losses],
        "kinds": kinds,
        "calls": calls,
    }


def one_process(inputs, targets, sizes, weigh=None, rank=None, scale=1.0, zero=True):
    """Train in one process, on all samples at once or with the wrong weights of a mistake.

    `weigh` returns a microbatch's weight from all sizes and its number. If it is None, the weight
    is the microbatch's share of the samples.
    """
    model, velocity, losses = Net(), {}, []
    trainable = [p for p in model.parameters() if p.requires_grad]
    for x, y in zip(inputs, targets, strict=True):
        if zero:
            model.zero_grad()
        total = 0.0
        for r in range(len(sizes)) if rank is None else [rank]:
            parts = (torch.from_numpy(part[r]).split(sizes[r]) for part in (x, y))
            for number, (samples, labels) in enumerate(zip(*parts, strict=True)):
                by_samples = len(labels) / sum(sizes[r])
                weight = by_samples if weigh is None else weigh(sizes[r], number)
                loss = mean_loss(model(samples), labels)
                (loss * weight / (len(sizes) if rank is None else 1)).backward()
                total += loss.item() * weight / (len(sizes) if rank is None else 1)
        losses.append(total)
        with torch.no_grad():
            for param in trainable:
                velocity[param] = MOMENTUM * velocity.get(param, 0) + param.grad * scale
                param.sub_(LEARNING_RATE * velocity[param])
    return {"weights": weights_of(model), "losses": losses}


UNWEIGHTED, LOST = "microbatch-mean-unweighted", "accumulation-lost"
CLEAR_ONCE = "Clear the gradients once, before the first microbatch, so that all of them add up."
MISWEIGHED = [  # a microbatch's weight, from the sizes and its number; the code; the message
    (
        lambda sizes, _: 1 / len(sizes),
        UNWEIGHTED,
        "Every microbatch has the same weight, whatever its size. Weight the mean loss of each "
        "microbatch by its share of the samples.",
    ),
    (
        lambda _sizes, _: 1.0,
        UNWEIGHTED,
        "The mean losses of the microbatches are added up without weights. Weight each by the "
        "microbatch's share of the samples, so that the sum is the mean over the batch.",
    ),
    (
        lambda sizes, number: sizes[number],
        UNWEIGHTED,
        "The microbatches are weighted by their samples, but not divided by the samples of the "
        "batch. That is the sum over the samples, not their mean.",
    ),
    (
        lambda sizes, number: sizes[number] / (sizes[0] * len(sizes)),
        UNWEIGHTED,
        "The microbatches are weighted as if each had as many samples as the first. Divide a "
        "microbatch's samples by the samples of all microbatches together.",
    ),
    (
        lambda sizes, number: number == len(sizes) - 1,
        LOST,
        f"The gradient contains only the last microbatch. {CLEAR_ONCE}",
    ),
    (
        lambda sizes, number: (number == len(sizes) - 1) * sizes[number] / sum(sizes),
        LOST,
        "The gradient contains only the last microbatch, weighted by its share of the samples. "
        f"{CLEAR_ONCE}",
    ),
]


@pytest.mark.parametrize("case", CASES)
@exercise("phase2/train_step_accumulated", points=4)
def test_steps_equal_those_on_whole_batches(ranks, rng, case):
    """After several steps, the weights equal those of one process that uses whole batches."""
    trainings = [(*draw(rng, 2, sizes, numbers), sizes) for sizes, numbers in CASES[case]]

    for seen, training in zip(run(ranks, trainings), trainings, strict=True):
        check_weights(seen, *training)


def check_weights(seen, inputs, targets, sizes):
    calls = [value["calls"] for value in seen]

    def mistaken(seen, expected):  # slow: it trains once for each known mistake
        return first_diagnosis(seen, expected, step_mistakes(inputs, targets, sizes, calls))

    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        one_process(inputs, targets, sizes)["weights"],
        mistakes=[mistaken],
    )


def step_mistakes(inputs, targets, sizes, calls):
    """Return the rules that recognise a mistake by its final weights, or by its calls."""
    world_size = len(sizes)

    def rule(code, text, **options):
        ended = one_process(inputs, targets, sizes, **options)["weights"]
        return ends_with([ended] * world_size, code, text, GUIDE)

    alone = [
        one_process(inputs, targets, sizes, rank=rank)["weights"] for rank in range(world_size)
    ]
    return [
        stepped_too_often(calls, GUIDE),
        parameters_averaged([name for name, _ in Net().named_parameters()], GUIDE),
        ends_with(
            alone,
            "gradients-not-synchronised",
            "Each rank ends with the weights of a process that trains on only its own samples. "
            "Call finish() of the averager before optimizer.step(): it averages the gradients.",
            GUIDE,
        ),
        stepped_too_early(calls, GUIDE),
        *(rule(code, text, weigh=weigh) for weigh, code, text in MISWEIGHED),
        rule(
            "does-not-learn",
            "The weights did not change: no step was taken, or all gradients were zero.",
            scale=0.0,
        ),
        rule(
            "gradients-not-zeroed",
            "Each step also used the gradients of earlier steps. Clear the gradients once in each "
            "step, before its first microbatch.",
            zero=False,
        ),
        rule(
            "sum-not-mean",
            f"The steps are {world_size} times too large: something is "
            "multiplied by the number of ranks.",
            scale=float(world_size),
        ),
        rule(
            "divided-twice",
            f"The steps are {world_size} times too small. The averager "
            "already divides by the number of ranks: do not divide again.",
            scale=1 / world_size,
        ),
        differs_from_one_process(
            GUIDE,
            f"{counted(world_size, 'rank')} with microbatches of {sizes} and targets of "
            f"{targets.dtype}",
        ),
    ]


@pytest.mark.parametrize("sizes", [UNEQUAL[:2], UNEQUAL[:1]], ids=["two ranks", "one rank"])
@exercise("phase2/train_step_accumulated", points=2)
def test_the_loss_is_the_mean_over_all_samples(ranks, rng, sizes):
    """The returned float is the mean loss over the samples of all microbatches of all ranks."""
    inputs, targets = draw(rng, 1, sizes)

    [seen] = run(ranks, [(inputs, targets, sizes)])

    kinds = sorted({kind for value in seen for kind in value["kinds"]})
    check(
        kinds == ["float"],
        "wrong-signature",
        no_float("train_step_accumulated", kinds),
        guide=GUIDE,
    )

    def mistaken(seen, expected):  # slow: it trains once for each known mistake
        return first_diagnosis(seen, expected, mistaken_losses(inputs, targets, sizes))

    losses = each(seen, lambda value: value["losses"][0])
    often = stepped_too_often([value["calls"] for value in seen], GUIDE)
    assert_on_every_rank(
        losses,
        one_process(inputs, targets, sizes)["losses"][0],
        mistakes=[often, mistaken],
        otherwise=f"train_step_accumulated returns {list(losses)} by rank, but should return the "
        "mean loss over the samples of all microbatches of all ranks",
    )


def mistaken_losses(inputs, targets, sizes):
    """Return the rules that recognise a mistake by the returned losses of a single step."""
    world_size = len(sizes)

    def loss(**options):
        return one_process(inputs, targets, sizes, **options)["losses"][0]

    twice = (np.concatenate([part, part]) for part in (inputs, targets))
    after = one_process(*twice, sizes)["losses"][1]
    rules = loss_mistakes([loss(rank=rank) for rank in range(world_size)], after, GUIDE)
    for weigh, code, reason in MISWEIGHED:
        alone = [loss(rank=rank, weigh=weigh) for rank in range(world_size)]
        text = f"The returned loss is wrong. {reason}"
        rules.append(ends_with([loss(weigh=weigh)] * world_size, code, text, GUIDE))
        rules.append(ends_with(alone, code, text, GUIDE))
    return rules
