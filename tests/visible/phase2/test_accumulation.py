"""Visible tests of train_step_accumulated: one weight, and three samples on each rank."""

import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, check, each, exercise, raise_mistake
from gradsync.text import listed, no_float
from support.probes.accumulation import noted_calls, watched_steps
from support.probes.returned import number_or_nan
from support.rules.accumulation import GUIDE, stepped_otherwise
from support.rules.losses import loss_mistakes
from support.rules.waiting import stepped_too_early, stepped_too_often
from support.rules.wrong_results import differs_from_one_process, ends_with

TARGETS = [[1.5], [2.0], [5.5]]  # on rank 0; on rank 1 they are larger by 2
RATE = 0.1


def microbatches_of(rank, sizes, width=1):
    """Return microbatches of these sizes: inputs 1, and this rank's targets."""
    targets = torch.tensor(TARGETS) + 2 * rank
    inputs = torch.eye(width)[:1].repeat(3, 1)
    return list(zip(inputs.split(sizes), targets.split(sizes), strict=True))


def model_and_optimizer(width=1):
    model = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def take_steps(rank, trainer, sizes, steps):
    """Fit `weight * 1 = target` from weight 0, with a number of steps on the same batch."""
    model, optimizer = model_and_optimizer()
    averager = trainer.BucketedGradientAverager(model)
    called, calls, losses = noted_calls(averager, optimizer), [], []
    for _ in range(steps):
        parts = microbatches_of(rank, sizes)
        loss_fn = nn.functional.mse_loss
        losses.append(trainer.train_step_accumulated(model, parts, loss_fn, optimizer, averager))
        calls.append(called[:])
        called.clear()
    return {
        "weight": model.weight.item(),
        "kind": "float" if isinstance(losses[0], float) else type(losses[0]).__name__,
        "loss": number_or_nan(losses[0]),
        "calls": calls,
    }


def check_weight(seen, expected, mistakes=(), alone=()):
    """Compare the ranks' weights with the expected one, or with those of known mistakes."""
    weights, calls = each(seen, lambda value: value["weight"]), [value["calls"] for value in seen]
    text = f"The weights are {alone} by rank, but should be {expected} on both. Each rank stepped "
    text += "with the gradient of only its own samples. Call finish() of the averager before "
    text += "optimizer.step(): it averages the gradients."
    still = "The weight is still 0: no step was taken, or all gradients were zero."
    assert_on_every_rank(
        weights,
        expected,
        mistakes=[
            stepped_too_often(calls, GUIDE),
            ends_with(alone, "gradients-not-synchronised", text, GUIDE),
            stepped_too_early(calls, GUIDE),
            ends_with([0.0] * len(seen), "does-not-learn", still, GUIDE),
            *(ends_with([wrong] * len(seen), *rest, GUIDE) for wrong, *rest in mistakes),
            differs_from_one_process(
                GUIDE, f"the weight should become {expected}, but becomes {listed(weights)} by rank"
            ),
        ],
    )


CLEAR_ONCE = "Clear the gradients once, before the first microbatch, so that all of them add up."
MISWEIGHED = [
    (
        0.725,
        "microbatch-mean-unweighted",
        "The weight is 0.725, not 0.6. Both microbatches have the same weight, but the first has "
        "two samples and the second one. Weight them by their samples.",
    ),
    (
        1.45,
        "microbatch-mean-unweighted",
        "The weight is 1.45, not 0.6. The mean losses of the microbatches are added up without "
        "weights. Weight them by their share of the samples.",
    ),
    (
        1.8,
        "microbatch-mean-unweighted",
        "The weight is 1.8, not 0.6: the step uses the sum over the samples, not their mean. "
        "Divide by the samples of the batch.",
    ),
    (
        0.45,
        "microbatch-mean-unweighted",
        "The weight is 0.45, not 0.6. The microbatches are weighted as if each had as many samples "
        "as the first. Divide a microbatch's samples by those of all microbatches together.",
    ),
    *(
        (wrong, "accumulation-lost", f"The step uses only the last microbatch. {CLEAR_ONCE}")
        for wrong in (1.1, 1.1 / 2, 1.1 / 3)
    ),
]


@exercise("phase2/train_step_accumulated", points=1)
def test_microbatches_weigh_by_their_samples(ranks):
    """Targets 1.5, 2 and 5.5, in parts of two and one, have mean 3: the weight becomes 0.6."""
    seen = ranks(take_steps, world_size=1, sizes=[2, 1], steps=1)

    check_weight(seen, 0.6, MISWEIGHED)


@exercise("phase2/train_step_accumulated", points=1)
def test_two_ranks_step_as_one(ranks):
    """On rank 1, the targets are larger by 2: all six have mean 4, and the weight becomes 0.8."""
    seen = ranks(take_steps, world_size=2, sizes=[1, 2], steps=1)

    mistakes = [
        (
            1.6,
            "sum-not-mean",
            "The weight is 1.6, not 0.8: something is multiplied by the number of ranks, or the "
            "gradients are the sum over the ranks.",
        ),
        (
            0.4,
            "divided-twice",
            "The weight is 0.4, not 0.8. The averager already divides by the number of ranks: do "
            "not divide again.",
        ),
    ]
    check_weight(seen, 0.8, mistakes, alone=[0.6, 1.0])


@exercise("phase2/train_step_accumulated", points=1)
def test_a_step_uses_no_gradients_of_the_step_before(ranks):
    """A second step on the targets with mean 3 goes from 0.6 to 0.6 + 0.2 * (3 - 0.6) = 1.08."""
    seen = ranks(take_steps, world_size=1, sizes=[2, 1], steps=2)

    kept = "After two steps the weight is 1.68, not 1.08: the second step also used the gradients "
    kept += "of the first. Clear the gradients in each step, before its first microbatch."
    check_weight(seen, 1.08, [(1.68, "gradients-not-zeroed", kept)])


@exercise("phase2/train_step_accumulated", points=1)
def test_the_loss_is_the_mean_over_the_samples(ranks):
    """The squares are 2.25, 4, 30.25 on rank 0 and 12.25, 16, 56.25 on rank 1: the mean is 121/6.

    Every rank returns it, as a float, as it was before the step.
    """
    seen = ranks(take_steps, world_size=2, sizes=[2, 1], steps=1)

    kinds = sorted({value["kind"] for value in seen})
    returned = no_float("train_step_accumulated", kinds)
    check(kinds == ["float"], "wrong-signature", returned, guide=GUIDE)
    losses, own = each(seen, lambda value: value["loss"]), [36.5 / 3, 84.5 / 3]
    after = sum((target + 2 * rank - 0.8) ** 2 for [target] in TARGETS for rank in (0, 1)) / 6
    unweighted = "Each rank returns the mean of its microbatches' mean losses. Weight each "
    unweighted += "microbatch by its samples."
    each_half = (2.25 + 4) / 2 + 30.25, (12.25 + 16) / 2 + 56.25
    lost = "The returned loss contains only the last microbatch. Add up the losses of all."
    last = [(30.25 + 56.25) / 2, (30.25 + 56.25) / 6]
    assert_on_every_rank(
        losses,
        121 / 6,
        mistakes=[
            *(
                ends_with([sum(each_half) / way] * 2, "microbatch-mean-unweighted", text, GUIDE)
                for way, text in ((4, unweighted), (2, unweighted))
            ),
            *(ends_with([wrong] * 2, "accumulation-lost", lost, GUIDE) for wrong in last),
            *loss_mistakes(own, after, GUIDE),
        ],
        otherwise="the squares are 2.25, 4, 30.25 on rank 0 and 12.25, 16, 56.25 on rank 1, and "
        f"their mean is 121 / 6 = 20.17, but train_step_accumulated returns {listed(losses)} by "
        "rank",
    )


@exercise("phase2/train_step_accumulated", points=1)
def test_gradients_are_sent_once_with_the_last_microbatch(ranks):
    """Three microbatches are run one by one; 200 gradients are sent in the last one's backward."""

    def probe(rank, trainer, sizes):
        model, optimizer = model_and_optimizer(width=200)
        steps = [microbatches_of(rank, sizes, width=200)]
        return watched_steps(trainer, model, optimizer, steps, nn.functional.mse_loss)

    seen = ranks(probe, world_size=2, sizes=[1, 1, 1])

    raise_mistake(stepped_otherwise(seen, [[1, 1, 1]] * 2, {"weight": 200}))
