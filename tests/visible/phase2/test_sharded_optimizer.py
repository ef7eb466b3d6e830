"""What `gradsync check` tries on the sharded optimizer: two ranks, two parameters, few numbers."""

import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, check, exercise, would_be

GUIDE = "Sharding the optimizer"


def make_params():
    """Return two parameters of four elements, all 5."""
    return [nn.Parameter(torch.full((4,), 5.0)) for _ in range(2)]


@exercise("phase2/ShardedOptimizer", points=1)
def test_every_rank_has_what_the_others_stepped(ranks):
    """Two parameters of 5s, gradients of 1 and 2: a step of length 1 makes them 4 and 3."""

    def probe(trainer):
        params = make_params()
        optimizer = trainer.ShardedOptimizer(params, torch.optim.SGD, lr=1.0)
        for number, param in enumerate(params, 1):
            param.grad = torch.full((4,), float(number))
        optimizer.step()
        return [param[0].item() for param in params]

    seen = ranks(probe, world_size=2)

    unshared = [
        would_be(
            wrong,
            "parameters-not-gathered",
            f"after a step the parameters are {wrong[0]} on rank 0 and {wrong[1]} on rank 1: each "
            "rank has stepped its own, but not got the other's",
            GUIDE,
        )
        for wrong in ([[4.0, 5.0], [5.0, 3.0]], [[5.0, 3.0], [4.0, 5.0]])
    ]
    assert_on_every_rank(
        seen,
        [4.0, 3.0],
        mistakes=unshared,
        otherwise=f"after a step the parameters are {list(seen)} by rank, but should be [4, 3] on "
        "both",
    )


@exercise("phase2/ShardedOptimizer", points=1)
def test_each_rank_keeps_the_state_of_one_parameter(ranks):
    """Adam keeps two numbers for each of 8 elements: 16 on one rank, 8 on each of two."""

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
        "both: each rank keeps those of its own parameter",
        ranks=range(2),
        guide=GUIDE,
    )


@exercise("phase2/ShardedOptimizer", points=1)
def test_groups_schedulers_and_closures_work(ranks):
    """At rates of 1 and 2, halved after a step, gradients of 1 lead from 5 to 3.5 and to 2."""

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
        {"parameters": [3.5, 2.0], "losses": [40.0, 28.0]},  # 8 of 5; 4 of 4 and 4 of 3
        otherwise=f"two steps at rates of 1 and 2, then 0.5 and 1, lead to {seen[0]} on rank 0; "
        "the parameters should be 3.5 and 2, the losses that the closure returned 40 and 28",
    )
