"""One optimizer step from several microbatches: the same weights, the same loss."""

from contextlib import suppress

import numpy as np
import pytest
import torch

from gradsync.diagnose import first_diagnosis
from gradsync.diagnose.gradients import parameters_averaged
from gradsync.diagnose.losses import loss_mistakes
from gradsync.diagnose.waiting import stepped_too_early, stepped_too_often
from gradsync.probes.accumulation import (
    LEARNING_RATE,
    MOMENTUM,
    UNEQUAL,
    Net,
    draw,
    mean_loss,
    optimizer_of,
)
from gradsync.probes.returned import number_or_nan
from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    case_by_case,
    check,
    differs_from_one_process,
    each,
    exercise,
    would_be,
)
from gradsync.text import counted

GUIDE = "Gradient accumulation"
CASES = {  # of each training: samples, by rank and microbatch, and whether targets are numbers
    "three ranks": [
        (UNEQUAL, False),
        ([[4, 3, 1], [2, 1, 5], [6, 1, 1]], True),
        ([[7]] * 3, False),
    ],
    "one rank": [([[1, 6, 2]], False)],
}


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def noted(averager, optimizer):
    """Return a list that grows by "finish" and "step" as the two are told to."""
    calls = []
    with suppress(AttributeError):  # one with slots takes no other method
        finish = averager.finish

        def finish_and_note(*args, **options):
            calls.append("finish")
            return finish(*args, **options)

        averager.finish = finish_and_note
        optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
    return calls


def run(ranks, trainings):
    """Run trainings in a row, of inputs, targets and sizes; return what was seen of each."""
    world_size = len(trainings[0][2])
    given = [(by_rank(x, 1), by_rank(y, 1), sizes) for x, y, sizes in trainings]
    seen = ranks(probe_trainings, world_size, trainings=given)
    return case_by_case(seen, len(trainings))


def probe_trainings(rank, trainer, trainings):
    return [trained(rank, trainer, *training) for training in trainings]


def trained(rank, trainer, inputs, targets, sizes):
    """Return this rank's weights and losses after a step on each of its batches.

    `calls` is what it called in each of the steps, of the averager's finish and optimizer's step.
    """
    model = Net()
    optimizer = optimizer_of(model)
    averager = trainer.BucketedGradientAverager(model)
    losses, calls, called = [], [], noted(averager, optimizer)
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
    """Train in one process, on all samples at once or as a mistake weighs them.

    `weigh` gives each microbatch's weight from its sizes and number; None weighs by samples.
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
MISWEIGHED = [  # how a microbatch weighs by the sizes and its number, the code, and what it means
    (
        lambda sizes, _: 1 / len(sizes),
        UNWEIGHTED,
        "every microbatch weighs the same, whatever its size: a microbatch's mean loss stands for "
        "its samples, and weighs by their number",
    ),
    (
        lambda _sizes, _: 1.0,
        UNWEIGHTED,
        "the mean losses of the microbatches are added up as they are: together they are to be the "
        "mean over the batch, each microbatch weighing by its samples",
    ),
    (
        lambda sizes, number: sizes[number],
        UNWEIGHTED,
        "the microbatches weigh by their samples, but nothing divides by the samples of the batch: "
        "that is the sum over samples, not their mean",
    ),
    (
        lambda sizes, number: sizes[number] / (sizes[0] * len(sizes)),
        UNWEIGHTED,
        "the batch is taken to have as many samples as if every microbatch were as large as the "
        "first: what a microbatch weighs is its samples, out of those that all of them have",
    ),
    (
        lambda sizes, number: number == len(sizes) - 1,
        LOST,
        "the last microbatch alone counts: what the others made is lost",
    ),
    (
        lambda sizes, number: (number == len(sizes) - 1) * sizes[number] / sum(sizes),
        LOST,
        "only the last microbatch's share is there: what the others made is lost",
    ),
]


@pytest.mark.parametrize("case", CASES)
@exercise("phase2/train_step_accumulated", points=4)
def test_steps_equal_those_on_whole_batches(ranks, rng, case):
    """After several steps the weights are those of one process that takes whole batches."""
    trainings = [(*draw(rng, 2, sizes, numbers), sizes) for sizes, numbers in CASES[case]]

    for seen, training in zip(run(ranks, trainings), trainings, strict=True):
        hold_weights(seen, *training)


def hold_weights(seen, inputs, targets, sizes):
    calls = [value["calls"] for value in seen]

    def mistaken(seen, expected):  # trains as mistakes would, a dozen times
        return first_diagnosis(seen, expected, step_mistakes(inputs, targets, sizes, calls))

    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        one_process(inputs, targets, sizes)["weights"],
        mistakes=[mistaken],
    )


def step_mistakes(inputs, targets, sizes, calls):
    """Return the rules that know a mistake by the weights that it ends with, and by its calls."""
    world_size = len(sizes)

    def rule(code, text, **options):
        ended = one_process(inputs, targets, sizes, **options)["weights"]
        return would_be([ended] * world_size, code, text, GUIDE)

    alone = [
        one_process(inputs, targets, sizes, rank=rank)["weights"] for rank in range(world_size)
    ]
    return [
        stepped_too_often(calls, GUIDE),
        parameters_averaged([name for name, _ in Net().named_parameters()], GUIDE),
        would_be(
            alone,
            "gradients-not-synchronised",
            "each rank ends with the weights of a process that trained on its own samples alone: "
            "after finish() of the averager the gradients are the mean, and then comes the step",
            GUIDE,
        ),
        stepped_too_early(calls, GUIDE),
        *(rule(code, text, weigh=weigh) for weigh, code, text in MISWEIGHED),
        rule(
            "does-not-learn",
            "the weights are those from before: no step was taken, or with empty gradients",
            scale=0.0,
        ),
        rule(
            "gradients-not-zeroed",
            "the gradients of earlier steps were added in: they have to be cleared for each step, "
            "once, before its first microbatch",
            zero=False,
        ),
        rule(
            "sum-not-mean",
            f"the weights are those of steps {world_size} times as long: something was multiplied "
            "by the number of ranks",
            scale=float(world_size),
        ),
        rule(
            "divided-twice",
            f"the weights are those of steps {world_size} times too short: the averager divides by "
            "the number of ranks already",
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
    """The float returned is the mean over the samples of all microbatches of all ranks."""
    inputs, targets = draw(rng, 1, sizes)

    [seen] = run(ranks, [(inputs, targets, sizes)])

    kinds = sorted({kind for value in seen for kind in value["kinds"]})
    check(
        kinds == ["float"],
        "wrong-signature",
        f"train_step_accumulated returns a {' or a '.join(kinds)}: a float is wanted",
        guide=GUIDE,
    )

    def mistaken(seen, expected):  # trains as mistakes would, once for each
        return first_diagnosis(seen, expected, mistaken_losses(inputs, targets, sizes))

    losses = each(seen, lambda value: value["losses"][0])
    often = stepped_too_often([value["calls"] for value in seen], GUIDE)
    assert_on_every_rank(
        losses,
        one_process(inputs, targets, sizes)["losses"][0],
        mistakes=[often, mistaken],
        otherwise=f"train_step_accumulated returns {list(losses)} by rank: that is not the mean "
        "loss over the samples of all microbatches of all ranks",
    )


def mistaken_losses(inputs, targets, sizes):
    """Return the rules that know a mistake by the losses returned of a single step."""
    world_size = len(sizes)

    def loss(**options):
        return one_process(inputs, targets, sizes, **options)["losses"][0]

    twice = (np.concatenate([part, part]) for part in (inputs, targets))
    after = one_process(*twice, sizes)["losses"][1]
    rules = loss_mistakes([loss(rank=rank) for rank in range(world_size)], after, GUIDE)
    for weigh, code, reason in MISWEIGHED:
        alone = [loss(rank=rank, weigh=weigh) for rank in range(world_size)]
        said = f"of the returned loss: {reason}"
        rules.append(would_be([loss(weigh=weigh)] * world_size, code, said, GUIDE))
        rules.append(would_be(alone, code, said, GUIDE))
    return rules
