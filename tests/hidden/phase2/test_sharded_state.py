"""The state of a sharded optimizer, and its interface as an optimizer."""

import math
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    check,
    each,
    exercise,
    raise_mistake,
)
from gradsync.testing.values import close
from gradsync.text import listed, ranks_text, verb
from support.probes import raised
from support.probes.optimizers import elements, parameters, watched
from support.probes.ready_made import ZERO, without
from support.probes.returned import number_or_nan
from support.probes.seeding import seed_weights
from support.rules.sharding import not_gathered, not_sharded, other_steps, ranks_differ

GUIDE = "Sharding the optimizer"
GROUPS = [[0, 3], [4, 1, 2]]  # of five parameters, by their numbers
ALIKE = 10  # elements of each parameter, where every parameter is its own group


def make_params(shapes, rank=0):
    seed_weights(5)
    return parameters([torch.rand(shape, dtype=torch.float64) for shape in shapes], rank)


def distance(params, targets):
    """Return the squared distance of the parameters from the targets, one number for each."""
    return sum(((p - t) ** 2).sum() for p, t in zip(params, targets, strict=True))


def probe_closure(rank, world_size, trainer, shapes, targets):
    """Step twice with a closure that averages gradients, as in a training step."""
    params = make_params(shapes, rank)
    kind, made = watched(torch.optim.Adam)
    optimizer = trainer.ShardedOptimizer(params, kind, lr=0.1)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        for param in params:
            param.grad = None
        loss = distance(params, targets[rank])
        loss.backward()
        for param in params:
            dist.all_reduce(param.grad)
            param.grad /= world_size
        return loss

    with without(ZERO):
        losses = [optimizer.step(closure) for _ in range(2)]
    return {
        "after": [param.detach().clone() for param in params],
        "losses": [None if loss is None else number_or_nan(loss) for loss in losses],
        "calls": len(calls),
        "grad_mode": torch.is_grad_enabled(),
        "kept": elements(one.state for one in made),
    }


@exercise("phase2/ShardedOptimizer", points=1)
def test_step_calls_the_closure_and_returns_its_loss(ranks, rng):
    """step(closure) calls the closure once on every rank, with gradients, and returns its loss."""
    shapes = [(3, 2), (4,)]
    targets = rng.uniform(-3, 3, (3, 2))  # (rank, parameter)

    seen = ranks(probe_closure, 3, shapes=shapes, targets=by_rank(targets))

    params = make_params(shapes)
    optimizer = torch.optim.Adam(params, lr=0.1)
    losses = [[], [], []]
    for _ in range(2):
        optimizer.zero_grad()
        own = [distance(params, targets[rank]) for rank in range(3)]
        (sum(own) / 3).backward()
        optimizer.step()
        for rank in range(3):
            losses[rank].append(own[rank].item())
    without = [rank for rank in range(3) if None in seen[rank]["losses"]]
    check(
        not without,
        "wrong-signature",
        f"step(closure) returns None on {ranks_text(without)}. Call the closure on every rank, and "
        "return its result.",
        ranks=without,
        guide=GUIDE,
    )
    assert_on_every_rank(
        each(seen, lambda value: [value["after"]]),
        [[param.detach() for param in params]],
        mistakes=[
            not_gathered([param.detach() for param in make_params(shapes)]),
            ranks_differ,
            other_steps("After two calls of step(closure)"),
        ],
    )
    other = [rank for rank in range(3) if not close(seen[rank]["losses"], losses[rank])]
    check(
        not other,
        "wrong-signature",
        "step(closure) does not return the closure's result. Call the closure once in each step, "
        "and return its result.",
        ranks=other,
        guide=GUIDE,
    )
    check_calls(seen)
    raise_mistake(not_sharded([value["kept"] for value in seen], elements([optimizer.state])))


def check_calls(seen):
    """Check that two steps call the closure twice, and do not change autograd's mode."""
    often = [rank for rank, value in enumerate(seen) if value["calls"] != 2]
    check(
        not often,
        "differs-from-single-process",
        f"Two calls of step(closure) call the closure {seen[often[0]]['calls'] if often else 2} "
        "times. A closure runs forward and backward: call it once in each step.",
        ranks=often,
        guide=GUIDE,
    )
    off = [rank for rank, value in enumerate(seen) if not value["grad_mode"]]
    check(
        not off,
        "mode-not-restored",
        "After step(closure), gradient tracking stays off. Restore it at the end of the step.",
        ranks=off,
        guide=GUIDE,
    )


def probe_state(rank, world_size, trainer, shapes, first):
    """Count the elements of state after steps without the last group, with it, and many groups."""
    kind, made = watched(torch.optim.Adam)

    def kept_by(optimizer, params):
        for param in params:
            param.grad = torch.ones_like(param)
        with without(ZERO):
            optimizer.step()
        return [elements(one.state for one in made), elements([optimizer.state])]

    params = parameters([torch.ones(shape) for shape in shapes], rank)
    optimizer = trainer.ShardedOptimizer(params[:first], kind, lr=0.1)
    rows = [kept_by(optimizer, params)]
    optimizer.add_param_group({"params": params[first:], "lr": 0.01})
    rows.append(kept_by(optimizer, params))
    made.clear()
    alike = parameters([torch.ones(ALIKE) for _ in range(2 * world_size)], rank)
    optimizer = trainer.ShardedOptimizer([{"params": [param]} for param in alike], kind, lr=0.1)
    return [*rows, kept_by(optimizer, alike)]


@exercise("phase2/ShardedOptimizer", points=3)
def test_each_rank_keeps_a_share_of_the_state(ranks, rng):
    """Each part of the state is on one rank; a rank has at most an even share and a parameter."""
    world_size = 4
    small = [(int(n),) for n in rng.integers(2, 5, 4 * world_size)]
    big = [(20, 10) if index % world_size == 0 else s for index, s in enumerate(small)]
    # In a strided split, one rank would get all large parameters.
    shapes = [*big, (30, 10), (8, 9), (10, 30)]

    seen = ranks(probe_state, world_size, shapes=shapes, first=len(big))

    moments = ("", ", after add_param_group", ", with a group for each parameter")
    for moment, known in enumerate((big, shapes, [(ALIKE,)] * (2 * world_size))):
        check_shares(
            [value[moment] for value in seen],
            [math.prod(shape) for shape in known],
            moments[moment],
        )


def check_shares(kept, sizes, when):
    """Check each rank's `[kept, shown]` elements of state: Adam has two for each element."""
    total, world_size = sum(sizes), len(kept)
    limit = 2 * (math.ceil(total / world_size) + max(sizes))
    most = [max(elements, shown) for elements, shown in kept]
    over = [rank for rank in range(world_size) if most[rank] > limit]
    check(
        not over,
        "state-not-sharded",
        f"{ranks_text(over).capitalize()} {verb(over, 'keeps', 'keep')} optimizer state of "
        f"{listed(most[rank] for rank in over)} elements{when}. The complete state has {2 * total} "
        f"elements: two for each element of a parameter. Each of {world_size} ranks may keep an "
        f"even share plus one parameter, at most {limit} elements.",
        ranks=over,
        guide=GUIDE,
    )
    shown = [elements for _, elements in kept]
    check(
        sum(shown) == 2 * total,
        "state-not-sharded",
        f"`.state` has {listed(shown)} elements on {ranks_text(range(world_size))}{when}, but the "
        f"complete state has {2 * total}. Each rank's `.state` must contain the state of its own "
        "share, and each parameter must belong to one rank.",
        ranks=range(world_size),
        guide=GUIDE,
    )


def probe_groups(trainer, members):
    """Create an optimizer of two groups, clear the gradients, and return its attributes."""
    params = make_params([(3, 2), (4,), (1,), (5, 2), (2,)])
    groups = [{"params": [params[index] for index in group]} for group in members]
    groups[0]["lr"] = 0.03
    optimizer = trainer.ShardedOptimizer(groups, torch.optim.SGD, lr=0.1)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.zero_grad()
    cleared = all(p.grad is None or not p.grad.any() for p in params)
    zeros_or_none = []
    for to_none in (False, True):
        for param in params:
            param.grad = torch.ones_like(param)
        refused = raised(partial(optimizer.zero_grad, set_to_none=to_none))
        kept = [p.grad is not None and not p.grad.any() for p in params]
        gone = [p.grad is None for p in params]
        zeros_or_none.append(refused is None and all(gone if to_none else kept))
    groups = [
        [index for held in group["params"] for index, p in enumerate(params) if p is held]
        for group in optimizer.param_groups
    ]
    return {
        "kind": isinstance(optimizer, torch.optim.Optimizer),
        "groups": groups,
        "settings": [float(group["lr"]) for group in optimizer.param_groups],
        "cleared": cleared,
        "zeros_or_none": zeros_or_none,
    }


@exercise("phase2/ShardedOptimizer", points=0.5)
def test_it_is_an_optimizer_over_all_parameters(ranks):
    """It is an Optimizer with all parameters in its groups, and zero_grad clears all gradients."""

    seen = ranks(probe_groups, 2, members=GROUPS)

    check_groups(seen)
    left = [rank for rank in range(2) if not seen[rank]["cleared"]]
    check(
        not left,
        "gradients-not-zeroed",
        f"After zero_grad, some parameters still have gradients on {ranks_text(left)}. Each rank "
        "must clear the gradients of all parameters, not only of its share.",
        ranks=left,
        guide=GUIDE,
    )
    check(
        all(all(value["zeros_or_none"]) for value in seen),
        "wrong-signature",
        "zero_grad refuses or ignores its argument. As in any torch.optim.Optimizer, `grad` must "
        "be zeros after zero_grad(set_to_none=False), and None after zero_grad(set_to_none=True). "
        "Use the inherited method.",
        ranks=[rank for rank, value in enumerate(seen) if not all(value["zeros_or_none"])],
        guide=GUIDE,
    )


def check_groups(seen):
    """Compare the attributes of each rank's optimizer with its arguments."""
    check(
        all(value["kind"] for value in seen),
        "wrong-signature",
        "A ShardedOptimizer is not a torch.optim.Optimizer. Derive it from that class: schedulers, "
        "for example, refuse anything else.",
        guide=GUIDE,
    )
    check(
        all(list(map(sorted, value["groups"])) == list(map(sorted, GROUPS)) for value in seen),
        "wrong-signature",
        f"`param_groups` of a ShardedOptimizer has the parameters {seen[0]['groups']} on rank 0, "
        f"but was created with {GROUPS}. It must contain all parameters, whichever rank owns them.",
        guide=GUIDE,
    )
    check(
        all(np.allclose(value["settings"], [0.03, 0.1]) for value in seen),
        "wrong-signature",
        f"The learning rates in `param_groups` are {seen[0]['settings']}, but the groups were "
        "created with [0.03, 0.1].",
        guide=GUIDE,
    )
