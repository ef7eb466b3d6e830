"""Visible tests of train_step_accumulated: one weight, and three samples on each rank."""

import torch
import torch.distributed as dist
from torch import nn

from gradsync.testing import assert_on_every_rank, check, each, exercise
from support.rules.buckets import between, lanes
from support.rules.wrong_results import ends_with

GUIDE = "Gradient accumulation"


def take_a_step(rank, trainer, sizes, width=1):
    """Fit `weight * 1 = target` from weight 0 with learning rate 0.1; the targets are 1, 2 and 6.

    On rank 1 they are larger by 2. Mark 1 is made before the step, mark 2 in the loss of its last
    microbatch.
    """
    group = dist.new_group()
    model = nn.Linear(width, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    averager = trainer.BucketedGradientAverager(model)
    targets = torch.tensor([[1.0], [2.0], [6.0]]) + 2 * rank
    inputs = torch.eye(width)[:1].repeat(3, 1)
    parts = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))
    calls = []

    def loss_fn(outputs, wanted):
        calls.append(len(wanted))
        if len(calls) == len(sizes):
            dist.all_reduce(torch.zeros(1, 1, 2, dtype=torch.int8), group=group)
        return nn.functional.mse_loss(outputs, wanted)

    dist.all_reduce(torch.zeros(1, 1, 1, dtype=torch.int8), group=group)
    loss = trainer.train_step_accumulated(model, parts, loss_fn, optimizer, averager)
    return {"weight": model.weight[0, 0].item(), "loss": loss}


def check_weight(seen, expected, mistakes=(), alone=()):
    text = f"The weights are {alone} by rank, but should be {expected} on both. Each rank stepped "
    text += "with the gradient of only its own samples."
    own = ends_with(alone, "gradients-not-synchronised", text, GUIDE)
    assert_on_every_rank(
        each(seen, lambda value: value["weight"]),
        expected,
        mistakes=[
            own,
            *(ends_with([wrong] * len(seen), *rest, GUIDE) for wrong, *rest in mistakes),
        ],
        otherwise=f"the step should lead to weight {expected}, but leads to "
        f"{[value['weight'] for value in seen]} by rank",
    )


@exercise("phase2/train_step_accumulated", points=1)
def test_microbatches_weigh_by_their_samples(ranks):
    """Targets 1, 2 and 6, in microbatches of two and one, have mean 3: the weight becomes 0.6."""
    seen = ranks(take_a_step, world_size=1, sizes=[2, 1])

    unweighted = "The weight is 0.75, not 0.6. Both microbatches have the same weight, but the "
    unweighted += "first has two samples and the second one. Weight them by their samples."
    added = "The weight is 1.5, not 0.6. The mean losses of the microbatches are added up without "
    added += "weights. Weight them by their share of the samples."
    lost = "Only the last microbatch counts. The first one is lost."
    check_weight(
        seen,
        0.6,
        [
            (0.75, "microbatch-mean-unweighted", unweighted),
            (1.5, "microbatch-mean-unweighted", added),
            (1.2, "accumulation-lost", lost),
            (0.4, "accumulation-lost", lost),
            (0.0, "does-not-learn", "The weight is still 0. Call optimizer.step()."),
        ],
    )


@exercise("phase2/train_step_accumulated", points=1)
def test_two_ranks_step_as_one(ranks):
    """On rank 1, the targets are larger by 2: all six have mean 4, and the weight becomes 0.8."""
    seen = ranks(take_a_step, world_size=2, sizes=[1, 2])

    check_weight(
        seen,
        0.8,
        [
            (
                1.6,
                "sum-not-mean",
                "The weight is 1.6, not 0.8: the gradients are the sum over the ranks, not the "
                "mean.",
            ),
            (
                0.4,
                "divided-twice",
                "The weight is 0.4, not 0.8. The averager already divides by the number of ranks: "
                "do not divide again.",
            ),
        ],
        alone=[0.6, 1.0],
    )


@exercise("phase2/train_step_accumulated", points=1)
def test_the_loss_is_the_mean_over_the_samples(ranks):
    """The squares are 1, 4 and 36 on rank 0, and 9, 16 and 64 on rank 1: their mean is 130 / 6."""
    seen = ranks(take_a_step, world_size=2, sizes=[2, 1])

    losses = each(seen, lambda value: value["loss"])
    local = "Each rank returns the mean of its own squares, 41 / 3 and 89 / 3. Return the mean of "
    local += "all six on both ranks."
    assert_on_every_rank(
        losses,
        130 / 6,
        mistakes=[ends_with([41 / 3, 89 / 3], "loss-is-local", local, GUIDE)],
        otherwise="the squares are 1, 4, 36 on rank 0 and 9, 16, 64 on rank 1, and their mean is "
        f"130 / 6 = 21.67, but train_step_accumulated returns {list(losses)} by rank",
    )


@exercise("phase2/train_step_accumulated", points=1)
def test_only_the_last_microbatch_sends(ranks):
    """Of three microbatches, the first two call no collective with their gradients."""
    seen = ranks(take_a_step, world_size=2, sizes=[1, 1, 1], width=50)

    early = lanes(between(seen, 0, (1, 2)))
    check(
        not early,
        "synchronised-too-often",
        "Gradients are sent before the loss of the last of three microbatches is computed. Until "
        "then they are only a part of the sum: run the first two backward passes under no_sync().",
        guide=GUIDE,
    )
