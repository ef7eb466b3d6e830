"""What `gradsync check` tries on train_step_accumulated: one weight and three samples a rank."""

import torch
import torch.distributed as dist
from torch import nn

from gradsync.diagnose.buckets import between, lanes
from gradsync.testing import assert_on_every_rank, check, each, exercise, would_be

GUIDE = "Gradient accumulation"


def take_a_step(rank, trainer, sizes, width=1):
    """Fit `weight * 1 = target` from weight 0, with rate 0.1; the targets are 1, 2 and 6.

    On rank 1 they are 2 more. Mark 1 comes before, mark 2 in the loss of the last microbatch.
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


def hold_weight(seen, expected, mistakes=(), alone=()):
    text = f"the weights are {alone}: each rank stepped with the gradient of its own samples"
    own = would_be(alone, "gradients-not-synchronised", text, GUIDE)
    assert_on_every_rank(
        each(seen, lambda value: value["weight"]),
        expected,
        mistakes=[own, *(would_be([wrong] * len(seen), *told, GUIDE) for wrong, *told in mistakes)],
        otherwise=f"the step should lead to weight {expected}, but leads to "
        f"{[value['weight'] for value in seen]} by rank",
    )


@exercise("phase2/train_step_accumulated", points=1)
def test_microbatches_weigh_by_their_samples(ranks):
    """Targets 1, 2 and 6 come as two and one: their mean is 3, so that the weight becomes 0.6."""
    seen = ranks(take_a_step, world_size=1, sizes=[2, 1])

    unweighted = "each microbatch weighs the same, though the first has two samples and the second "
    lost = "the weight is that of the last microbatch alone: the first one was lost"
    hold_weight(
        seen,
        0.6,
        [
            (0.75, "microbatch-mean-unweighted", f"{unweighted}one: weight 0.75 instead of 0.6"),
            (1.5, "microbatch-mean-unweighted", "the microbatches' mean losses are added up as "
             "they are, which makes the weight 1.5 instead of 0.6"),
            (1.2, "accumulation-lost", lost),
            (0.4, "accumulation-lost", lost),
            (0.0, "does-not-learn", "the weight is still 0: did the optimizer step?"),
        ],
    )  # fmt: skip


@exercise("phase2/train_step_accumulated", points=1)
def test_two_ranks_step_as_one(ranks):
    """On rank 1 the targets are 2 more: the mean of all six is 4, and the weight becomes 0.8."""
    seen = ranks(take_a_step, world_size=2, sizes=[1, 2])

    hold_weight(
        seen,
        0.8,
        [
            (1.6, "sum-not-mean", "the weight is 1.6, not 0.8: gradients were added up over ranks"),
            (0.4, "divided-twice", "the weight is 0.4, not 0.8: the averager divides already"),
        ],
        alone=[0.6, 1.0],
    )


@exercise("phase2/train_step_accumulated", points=1)
def test_the_loss_is_the_mean_over_the_samples(ranks):
    """The squares are 1, 4 and 36 on rank 0, and 9, 16 and 64 on rank 1: their mean is 130 / 6."""
    seen = ranks(take_a_step, world_size=2, sizes=[2, 1])

    losses = each(seen, lambda value: value["loss"])
    local = "each rank returns the mean of its own squares, 41 / 3 and 89 / 3: the mean over all "
    assert_on_every_rank(
        losses,
        130 / 6,
        mistakes=[would_be([41 / 3, 89 / 3], "loss-is-local", f"{local}six is wanted", GUIDE)],
        otherwise="the squares are 1, 4, 36 on rank 0 and 9, 16, 64 on rank 1, and their mean is "
        f"130 / 6 = 21.67, but train_step_accumulated returns {list(losses)} by rank",
    )


@exercise("phase2/train_step_accumulated", points=1)
def test_only_the_last_microbatch_sends(ranks):
    """Of three microbatches, the first two enter no collective for their gradients."""
    seen = ranks(take_a_step, world_size=2, sizes=[1, 1, 1], width=50)

    early = lanes(between(seen, 0, (1, 2)))
    check(
        not early,
        "synchronised-too-often",
        "gradients are sent before the last of three microbatches has come to its loss: what is "
        "there until then is only part of the sum, so keep it with no_sync()",
        guide=GUIDE,
    )
