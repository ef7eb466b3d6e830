"""Visible tests of the sharded optimizer: few parameters, few numbers."""

import math

import numpy as np
import torch
from torch import nn

from gradsync.ranks import RankFailure
from gradsync.records import Diagnosis
from gradsync.testing import (
    assert_on_every_rank,
    check,
    each,
    exercise,
    raise_mistake,
    seen_of,
)
from gradsync.testing.values import close
from support.probes.returned import number_or_nan
from support.probes.sharding import (
    ALIKE,
    GROUPS,
    drive,
    make_params,
    probe_drive,
    probe_groups,
    probe_state,
)
from support.rules.buckets import nobody_waited, with_guide
from support.rules.sharding import (
    GUIDE,
    closure_misused,
    closure_without_gradients,
    missing_defaults,
    not_sharded,
    ranks_differ,
    step_mistakes,
    unevenly_sharded,
    unlike_an_optimizer,
    used_up,
)
from support.rules.wrong_results import ends_with

SHAPES = [(3, 2), (4,), (1,)]
ADAM = {
    "name": "Adam",
    "options": {"lr": 0.1},
    "shapes": SHAPES,
    "groups": [{"members": [0, 1, 2]}],
}
MOMENTUM = {
    "name": "SGD",
    "options": {"lr": 0.1, "momentum": 0.9},
    "shapes": SHAPES,
    "groups": [{"members": [0], "lr": 0.03}, {"members": [2, 1], "weight_decay": 0.3}],
}


SETTINGS = "Give the inner optimizer each group with all of its own settings, not only the "
SETTINGS += "parameters and the learning rate."


def gradients(shapes, steps=3):
    """Return gradients (step, parameter): in step s all elements of parameter p are s + p + 1."""
    return [[np.full(shape, s + p + 1.0) for p, shape in enumerate(shapes)] for s in range(steps)]


def check_steps(ranks, world_size, case, grads, what, mistakes=(), advice=""):
    """Compare the parameters after each step with those of torch's own optimizer.

    Each rank creates the parameters in another order, and passes them in the same order.
    """
    try:
        seen = judge_steps(ranks, world_size, case, grads, what, mistakes, advice)
    except (AssertionError, RankFailure):
        if not is_right_alike(ranks, world_size, case, grads):
            raise
        text = (
            f"{what}, a step is right if all ranks create their parameters in the same order, and "
            "wrong if they create them in different orders and then pass the same list. So the "
            "owners, or the order of the messages, depend on addresses, which differ between "
            "processes, as the order of a set does. Go through lists."
        )
        raise_mistake(Diagnosis("deadlock-order-differs", (0, 1), text, guide=GUIDE))
    else:
        kept = drive(case, grads)["kept"]
        raise_mistake(not_sharded([value["kept"] for value in seen], kept))


def is_right_alike(ranks, world_size, case, grads):
    """Return whether steps are right if all ranks create their parameters in the same order."""
    alike = {**case, "alike": True}
    seen = seen_of(lambda: ranks(probe_drive, world_size, case=alike, grads=grads))
    after = drive(case, grads)["after"]
    return seen.failure is None and all(close(value["after"], after) for value in seen)


def judge_steps(ranks, world_size, case, grads, what, mistakes, advice):
    """Check the parameters after each step; return what the ranks did."""
    seen = ranks(probe_drive, world_size, case=case, grads=grads, mistakes=mistakes)

    before = [param.detach() for param in make_params(case)]
    assert_on_every_rank(
        each(seen, lambda value: value["after"]),
        drive(case, grads)["after"],
        mistakes=step_mistakes(before, what, advice),
    )
    return seen


@exercise("phase2/ShardedOptimizer", points=1)
def test_every_rank_gets_the_parameters_of_the_others(ranks):
    """Two parameters of 5, with gradients 1 and 2: a step with learning rate 1 gives 4 and 3."""

    def probe(trainer):
        params = [nn.Parameter(torch.full((4,), 5.0)) for _ in range(2)]
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
    still = "After a step, the parameters are still 5: no rank stepped its share, or the new "
    still += "values were overwritten by a rank that does not own them."
    lost = "After a step, only one of the parameters has its new value, and the ranks agree: the "
    lost += "other's new value was overwritten. Each parameter must come from the rank that owns "
    lost += "it, not always from the same rank."
    mean = "The parameters become 4.5 and 4, the mean of the old and the new values. Only a "
    mean += "parameter's owner has its new value: send it to the others instead of averaging."
    assert_on_every_rank(
        seen,
        [4.0, 3.0],
        mistakes=[
            with_guide(nobody_waited, GUIDE),
            *unshared,
            ends_with([[5.0, 5.0]] * 2, "does-not-learn", still, GUIDE),
            ends_with([[4.5, 4.0]] * 2, "parameters-not-gathered", mean, GUIDE),
            ends_with([[4.0, 5.0]] * 2, "parameters-not-gathered", lost, GUIDE),
            ends_with([[5.0, 3.0]] * 2, "parameters-not-gathered", lost, GUIDE),
            ranks_differ,
        ],
        otherwise=f"after a step, the parameters are {list(seen)} by rank, but should be [4, 3] on "
        "both",
    )


@exercise("phase2/ShardedOptimizer", points=1)
def test_steps_equal_the_unsharded_optimizers(ranks):
    """After each of three steps of Adam, two ranks and a single one have torch's parameters."""
    for world_size in (2, 1):
        what = f"With Adam, on {world_size} rank{'s' * (world_size > 1)}"
        check_steps(ranks, world_size, ADAM, gradients(SHAPES), what)


@exercise("phase2/ShardedOptimizer", points=1)
def test_more_ranks_than_parameters(ranks):
    """Three ranks share two parameters, so one of them owns nothing, and gets both."""
    case = {**ADAM, "shapes": SHAPES[:2], "groups": [{"members": [0, 1]}]}
    check_steps(ranks, 3, case, gradients(SHAPES[:2]), "With 2 parameters on 3 ranks")


@exercise("phase2/ShardedOptimizer", points=1)
def test_parameters_of_two_dtypes_from_an_iterator(ranks):
    """Parameters of float64 and float32 in turn may be given as model.parameters() gives them."""
    case = {**ADAM, "mixed": True, "iterator": True}
    what = "With float32 and float64 parameters from an iterator"
    check_steps(ranks, 2, case, gradients(SHAPES), what, [used_up])


@exercise("phase2/ShardedOptimizer", points=1)
def test_groups_keep_their_own_settings(ranks):
    """SGD steps one group with learning rate 0.03, and the other one with weight decay 0.3."""
    what = "With SGD with momentum and two groups with different settings"
    check_steps(ranks, 2, MOMENTUM, gradients(SHAPES), what, advice=SETTINGS)


@exercise("phase2/ShardedOptimizer", points=1)
def test_a_parameter_without_a_gradient_does_not_change(ranks):
    """In the second step parameter 1 has no gradient, and keeps its value and its momentum."""
    grads = gradients(SHAPES)
    grads[1][1] = None
    check_steps(ranks, 2, MOMENTUM, grads, "With a parameter without a gradient in a step")


@exercise("phase2/ShardedOptimizer", points=1)
def test_a_group_may_be_added_later(ranks):
    """A group that is added before the second step is stepped with its own learning rate."""
    late = {"members": [1, 2], "lr": 0.02}
    case = {**ADAM, "groups": [{"members": [0]}], "late": late, "late_at": 1}
    what = "With a group added after the first step"
    check_steps(ranks, 2, case, gradients(SHAPES), what, advice=SETTINGS)


@exercise("phase2/ShardedOptimizer", points=1)
def test_a_scheduler_sets_learning_rates_and_momentum(ranks):
    """OneCycleLR changes the learning rate and the momentum of both groups before each step."""
    case = {**MOMENTUM, "cycle": {"max_lr": [0.3, 0.1], "total_steps": 6}}
    what = "With OneCycleLR, which sets the groups' learning rates and momentum"
    advice = "Give the inner optimizer the current settings of each group before each step."
    check_steps(ranks, 2, case, gradients(SHAPES), what, [missing_defaults], advice)


@exercise("phase2/ShardedOptimizer", points=1)
def test_step_calls_the_closure_and_returns_its_loss(ranks):
    """With rate 1 and gradients 1, step(closure) goes from 5 to 4 to 3, and returns 40 and 32."""

    def probe(trainer):
        params = [nn.Parameter(torch.full((4,), 5.0)) for _ in range(2)]
        optimizer = trainer.ShardedOptimizer(params, torch.optim.SGD, lr=1.0)
        calls = []

        def closure():
            calls.append("closure")
            optimizer.zero_grad()
            loss = sum(param.sum() for param in params)
            loss.backward()
            return loss

        losses = [optimizer.step(closure) for _ in range(2)]
        return {
            "params": [param[0].item() for param in params],
            "losses": [None if loss is None else number_or_nan(loss) for loss in losses],
            "calls": len(calls),
            "grad_mode": torch.is_grad_enabled(),
        }

    # One rank owns no parameter.
    seen = ranks(probe, world_size=3, mistakes=[closure_without_gradients])

    stepped = all(value["params"] == [3.0, 3.0] for value in seen)
    # 8 times 5, and 8 times 4 if the first step is right.
    raise_mistake(closure_misused(seen, [[40.0, 32.0][: 1 + stepped]] * 3))
    text = "After two calls of step(closure), the parameters are "
    text += f"{[value['params'] for value in seen]} by rank, but should be [3, 3] on all."
    check(stepped, "parameters-not-gathered", text, guide=GUIDE)


@exercise("phase2/ShardedOptimizer", points=1)
def test_each_rank_keeps_the_state_of_its_share(ranks):
    """Of 8, 1, 8, 1, 8 and 1 elements, a rank owns at most 14 + 8: not the three large parameters.

    Adam keeps two numbers for each element, and `.state` shows those of the rank's own parameters.
    """
    shapes = [(8,), (1,), (8,), (1,), (8,), (1,), (6,), (2,)]

    seen = ranks(probe_state, world_size=2, shapes=shapes, first=6)

    moments = ("", ", after add_param_group", ", with a group for each parameter")
    for moment, known in enumerate((shapes[:6], shapes, [(ALIKE,)] * 4)):
        sizes = [math.prod(shape) for shape in known]
        raise_mistake(unevenly_sharded([v[moment] for v in seen], sizes, moments[moment]))


@exercise("phase2/ShardedOptimizer", points=1)
def test_it_is_an_optimizer_over_all_parameters(ranks):
    """It is a torch.optim.Optimizer whose groups and zero_grad have the parameters of all ranks."""
    seen = ranks(probe_groups, world_size=2)

    raise_mistake(unlike_an_optimizer(seen, GROUPS))
