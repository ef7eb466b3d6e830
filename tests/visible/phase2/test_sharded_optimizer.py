"""Visible tests of the sharded optimizer: two ranks, two parameters, few numbers."""

import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, check, exercise
from support.rules.wrong_results import ends_with

GUIDE = "Sharding the optimizer"


def make_params():
    """Return two parameters of four elements, all 5."""
    return [nn.Parameter(torch.full((4,), 5.0)) for _ in range(2)]


@exercise("phase2/ShardedOptimizer", points=1)
def test_every_rank_gets_the_parameters_of_the_others(ranks):
    """Two parameters of 5, with gradients 1 and 2: a step with learning rate 1 gives 4 and 3."""

    def probe(trainer):
        params = make_params()
        optimizer = trainer.ShardedOptimizer(params, torch.optim.SGD, lr=1.0)
        for number, param in enumerate(params, 1):
            param.grad = torch.full((4,), float(number))
        optimizer.step()
        return [param[0].item() for param in params]

    seen = ranks(probe, world_size=2)

    unshared = [
        ends_with(
            wrong,
            "parameters-not-gathered",
            f"After a step, the parameters are {wrong[0]} on rank 0 and {wrong[1]} on rank 1. Each "
            "rank stepped its own parameter, but did not receive the other rank's.",
            GUIDE,
        )
        for wrong in ([[4.0, 5.0], [5.0, 3.0]], [[5.0, 3.0], [4.0, 5.0]])
    ]
    assert_on_every_rank(
        seen,
        [4.0, 3.0],
        mistakes=unshared,
        otherwise=f"after a step, the parameters are {list(seen)} by rank, but should be [4, 3] on "
        "both",
    )


@exercise("phase2/ShardedOptimizer", points=1)
def test_each_rank_keeps_the_state_of_one_parameter(ranks):
    """Adam keeps two numbers for each of 8 elements: with two ranks, each keeps 8 of the 16."""

    def probe(trainer):
        params = make_params()
        optimizer = trainer.ShardedOptimizer(params, torch.optim.Adam)
        for param in params:
            param.grad = torch.ones(4)
        optimizer.step()
        tensors = [t for kept in optimizer.state.values() for t in kept.values()]
        return sum(t.numel() for t in tensors if isinstance(t, torch.Tensor) and t.dim() > 0)

    seen = ranks(probe, world_size=2)

    check(
        list(seen) == [8, 8],
        "state-not-sharded",
        f"`.state` has {seen[0]} numbers on rank 0 and {seen[1]} on rank 1, but should have 8 on "
        "both. Each rank must keep the state of only its own parameter.",
        ranks=range(2),
        guide=GUIDE,
    )


@exercise("phase2/ShardedOptimizer", points=1)
def test_groups_schedulers_and_closures_work(ranks):
    """With rates 1 and 2, halved after a step, two steps with gradient 1 turn 5 into 3.5 and 2."""

    def probe(trainer):
        params = make_params()
        groups = [{"params": params[:1], "lr": 1.0}]
        optimizer = trainer.ShardedOptimizer(groups, torch.optim.SGD, lr=2.0)
        optimizer.add_param_group({"params": params[1:]})
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

        def closure():
            optimizer.zero_grad()
            loss = sum(param.sum() for param in params)
            loss.backward()
            return loss

        losses = []
        for _ in range(2):
            losses.append(float(optimizer.step(closure)))
            scheduler.step()
        return {"parameters": [param[0].item() for param in params], "losses": losses}

    seen = ranks(probe, world_size=2)

    assert_on_every_rank(
        seen,
        {"parameters": [3.5, 2.0], "losses": [40.0, 28.0]},  # 8 times 5; 4 times 4 and 4 times 3
        otherwise="two steps with learning rates of 1 and 2, then 0.5 and 1, lead to "
        f"{seen[0]} on rank 0. The parameters should be 3.5 and 2, and the losses returned by the "
        "closure 40 and 28",
    )
