"""Visible tests of the pipeline: two stages with one weight each."""

import torch
from torch import nn

from gradsync.testing import (
    assert_on_every_rank,
    assert_rank_by_rank,
    each,
    exercise,
    raise_mistake,
)
from gradsync.text import listed
from support.rules.pipelines import (
    diagnose_order,
    pipeline_gradient_mistakes,
    pipeline_loss_mistakes,
)
from support.rules.wrong_results import differs_from_one_process, ends_with

GUIDE = "Pipelines"


class Times(nn.Module):
    """Multiplies by one weight, and records when it runs forward and backward."""

    def __init__(self, weight, shape):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))
        self.shape = shape  # of a sample's output
        self.order = []

    def forward(self, inputs):
        self.order.append("forward")
        outputs = (inputs * self.weight).reshape(-1, *self.shape)
        if outputs.requires_grad:
            outputs.register_hook(lambda _: self.order.append("backward"))
        return outputs


def probe_step(rank, world_size, model_parallel):
    """Take a step with two stages: times 2, with outputs (sample, 1, 1, 1), and times 3."""
    stage = Times(2.0, (1, 1, 1)) if rank == 0 else Times(3.0, ())
    inputs = [torch.tensor([[1.0], [1.0]]), torch.tensor([[2.0]])]
    targets = [torch.tensor([5.0, 5.0]), torch.tensor([10.0])]
    microbatches = [
        (x if rank == 0 else None, y if rank == world_size - 1 else None)
        for x, y in zip(inputs, targets, strict=True)
    ]
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.125)
    loss = model_parallel.pipeline_train_step(stage, microbatches, nn.MSELoss(), optimizer)
    return {
        "loss": loss,
        "gradient": {"weight": stage.weight.grad},
        "weight": stage.weight.item(),
        "order": stage.order,
    }


@exercise("phase2/pipeline_train_step", points=1)
def test_the_stages_have_the_whole_batchs_gradients(ranks):
    """The stages multiply by 2 and 3; inputs are 1 and 1, then 2; targets 5 and 5, then 10.

    The outputs are 6, 6 and 12, off by 1, 1 and 2. The gradient of the mean squared error is 12
    for the first stage's weight and 8 for the second's.
    """
    seen = ranks(probe_step, world_size=2)

    def both(first, second):
        return [{"weight": torch.tensor(first)}, {"weight": torch.tensor(second)}]

    wrong = [
        ("equally", both(15.0, 10.0)),
        ("summed", both(30.0, 20.0)),
        ("last", both(8.0, 16.0 / 3)),
    ]
    gradients = each(seen, lambda kept: kept["gradient"])
    assert_rank_by_rank(gradients, both(12.0, 8.0), mistakes=pipeline_gradient_mistakes(wrong))


@exercise("phase2/pipeline_train_step", points=1)
def test_each_stage_takes_a_step(ranks):
    """A step with learning rate 1/8 changes the weights from 2 to 0.5 and from 3 to 2."""
    seen = ranks(probe_step, world_size=2)

    weights = each(seen, lambda kept: kept["weight"])
    assert_rank_by_rank(
        weights,
        [0.5, 2.0],
        mistakes=[
            ends_with(
                [2.0, 3.0],
                "does-not-learn",
                "The weights did not change: the optimizer took no step. Call optimizer.step().",
                GUIDE,
            ),
            differs_from_one_process(GUIDE, f"they become {listed(weights)} by rank"),
        ],
    )


@exercise("phase2/pipeline_train_step", points=1)
def test_every_rank_returns_the_loss(ranks):
    """The squared errors are 1 and 1, then 4: both ranks return their mean, 2."""
    seen = ranks(probe_step, world_size=2)

    losses = each(seen, lambda kept: kept["loss"])
    assert_on_every_rank(losses, 2.0, mistakes=pipeline_loss_mistakes(equally=2.5, summed=5.0))


@exercise("phase2/pipeline_train_step", points=1)
def test_all_forwards_come_before_all_backwards(ranks):
    """Both stages run forward for both microbatches before they run backward."""
    seen = ranks(probe_step, world_size=2)

    raise_mistake(diagnose_order([kept["order"] for kept in seen], 2))
