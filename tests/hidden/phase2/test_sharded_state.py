"""What a sharded optimizer keeps, and that it is an optimizer in every other way."""

import math
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from gradsync.diagnose.sharding import not_gathered, not_sharded, other_steps, ranks_differ
from gradsync.diagnose.values import close
from gradsync.probes import raised
from gradsync.probes.optimizers import elements, parameters, watched
from gradsync.probes.ready_made import ZERO, without
from gradsync.probes.returned import number_or_nan
from gradsync.probes.seeding import seed_weights
from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    check,
    each,
    exercise,
    hold,
)
from gradsync.text import ranks_text

GUIDE = "Sharding the optimizer"
GROUPS = [[0, 3], [4, 1, 2]]  # of five parameters, by their numbers
ALIKE = 10  # elements of each of some parameters that are groups of their own


def make_params(shapes, rank=0):
    seed_weights(5)
    return parameters([torch.rand(shape, dtype=torch.float64) for shape in shapes], rank)


def close_in(params, targets):
    """Return the squared distance of the parameters from numbers, one for each."""
    return sum(((p - t) ** 2).sum() for p, t in zip(params, targets, strict=True))


def probe_closure(rank, world_size, trainer, shapes, targets):
    """Step twice with a closure that averages gradients, as a training step's would."""
    params = make_params(shapes, rank)
    kind, made = watched(torch.optim.Adam)
    optimizer = trainer.ShardedOptimizer(params, kind, lr=0.1)
    calls = []

    def closure():
        calls.append(torch.is_grad_enabled())
        for param in params:
            param.grad = None
        loss = close_in(params, targets[rank])
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
    """step(closure) calls it once on every rank, with gradients on, and returns its loss."""
    shapes = [(3, 2), (4,)]
    targets = rng.uniform(-3, 3, (3, 2))  # (rank, parameter)

    seen = ranks(probe_closure, 3, shapes=shapes, targets=by_rank(targets))

    params = make_params(shapes)
    optimizer = torch.optim.Adam(params, lr=0.1)
    losses = [[], [], []]
    for _ in range(2):
        optimizer.zero_grad()
        own = [close_in(params, targets[rank]) for rank in range(3)]
        (sum(own) / 3).backward()
        optimizer.step()
        for rank in range(3):
            losses[rank].append(own[rank].item())
    without = [rank for rank in range(3) if None in seen[rank]["losses"]]
    check(
        not without,
        "wrong-signature",
        f"step(closure) returns None on {ranks_text(without)}: every rank is to "
        "call the closure and return what it returned",
        ranks=without,
        guide=GUIDE,
    )
    assert_on_every_rank(
        each(seen, lambda value: [value["after"]]),
        [[param.detach() for param in params]],
        mistakes=[
            not_gathered([param.detach() for param in make_params(shapes)]),
            ranks_differ,
            other_steps("after two calls of step(closure)"),
        ],
    )
    other = [rank for rank in range(3) if not close(seen[rank]["losses"], losses[rank])]
    check(
        not other,
        "wrong-signature",
        "step(closure) does not return what the closure returned, once for each step",
        ranks=other,
        guide=GUIDE,
    )
    hold_calls(seen)
    hold(not_sharded([value["kept"] for value in seen], elements([optimizer.state])))


def hold_calls(seen):
    """Hold two steps to have called the closure twice, and to have left autograd's mode alone."""
    often = [rank for rank, value in enumerate(seen) if value["calls"] != 2]
    check(
        not often,
        "differs-from-single-process",
        f"2 calls of step(closure) call the closure {seen[often[0]]['calls'] if often else 2} "
        "times: a closure is a forward and a backward, and each step needs one of them",
        ranks=often,
        guide=GUIDE,
    )
    off = [rank for rank, value in enumerate(seen) if not value["grad_mode"]]
    check(
        not off,
        "mode-not-restored",
        "after step(closure) autograd is switched off for all that comes next: what is done "
        "without gradients ends with the step",
        ranks=off,
        guide=GUIDE,
    )


def probe_state(rank, world_size, trainer, shapes, first):
    """Count what is kept after steps: without the last group, with it, and with many groups."""
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
    """No rank keeps more than an even share by elements and one parameter; all is kept once."""
    world_size = 4
    small = [(int(n),) for n in rng.integers(2, 5, 4 * world_size)]
    big = [(20, 10) if index % world_size == 0 else s for index, s in enumerate(small)]
    shapes = [
        *big,
        (30, 10),
        (8, 9),
        (10, 30),
    ]  # by card-dealing one rank would get all that is large

    seen = ranks(probe_state, world_size, shapes=shapes, first=len(big))

    moments = ("", ", after add_param_group", ", with a group for each parameter")
    for moment, known in enumerate((big, shapes, [(ALIKE,)] * (2 * world_size))):
        hold_shares(
            [value[moment] for value in seen],
            [math.prod(shape) for shape in known],
            moments[moment],
        )


def hold_shares(kept, sizes, when):
    """Check each rank's `[kept, shown]` elements of Adam's state, two for each of a parameter."""
    total, world_size = sum(sizes), len(kept)
    limit = 2 * (math.ceil(total / world_size) + max(sizes))
    most = [max(elements, shown) for elements, shown in kept]
    over = [rank for rank in range(world_size) if most[rank] > limit]
    check(
        not over,
        "state-not-sharded",
        f"{ranks_text(over)} {'keep' if len(over) > 1 else 'keeps'} optimizer state of "
        f"{', '.join(str(most[rank]) for rank in over)} elements{when}, where the whole has "
        f"{2 * total}: a rank of {world_size} may keep an even share of the elements and "
        f"one parameter, that is {limit} with Adam, which keeps two for each",
        ranks=over,
        guide=GUIDE,
    )
    shown = [elements for _, elements in kept]
    check(
        sum(shown) == 2 * total,
        "state-not-sharded",
        f"`.state` shows {', '.join(map(str, shown))} elements on ranks 0 to {world_size - 1}"
        f"{when}, and the whole has {2 * total}: each rank's is to show the state of its own "
        "share, and every parameter belongs to one rank",
        ranks=range(world_size),
        guide=GUIDE,
    )


def probe_groups(trainer, members):
    """Make an optimizer of two groups, clear the gradients, and return what it shows then."""
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
    """It is a torch.optim.Optimizer whose groups hold all parameters, and it clears them all."""

    seen = ranks(probe_groups, 2, members=GROUPS)

    hold_groups(seen)
    left = [rank for rank in range(2) if not seen[rank]["cleared"]]
    check(
        not left,
        "gradients-not-zeroed",
        "after zero_grad some parameters still have gradients, on rank "
        f"{', '.join(map(str, left))}: each rank clears those of all parameters, not of its share "
        "alone",
        ranks=left,
        guide=GUIDE,
    )
    check(
        all(all(value["zeros_or_none"]) for value in seen),
        "wrong-signature",
        "zero_grad(set_to_none=False) has to leave zeros in `grad`, zero_grad(set_to_none=True) "
        "None, as any torch.optim.Optimizer's: here the argument is refused, or has no influence. "
        "What is inherited need not be written again",
        ranks=[rank for rank, value in enumerate(seen) if not all(value["zeros_or_none"])],
        guide=GUIDE,
    )


def hold_groups(seen):
    """Hold what each rank's optimizer shows of itself against what it was made of."""
    check(
        all(value["kind"] for value in seen),
        "wrong-signature",
        "a ShardedOptimizer is no torch.optim.Optimizer: schedulers, for one, refuse anything else",
        guide=GUIDE,
    )
    check(
        all(list(map(sorted, value["groups"])) == list(map(sorted, GROUPS)) for value in seen),
        "wrong-signature",
        "`param_groups` of a ShardedOptimizer do not hold the groups that it was given: "
        f"parameters {seen[0]['groups']} on rank 0, for {GROUPS}. Who owns a parameter is the "
        "optimizer's own business",
        guide=GUIDE,
    )
    check(
        all(np.allclose(value["settings"], [0.03, 0.1]) for value in seen),
        "wrong-signature",
        f"the groups' learning rates in `param_groups` are {seen[0]['settings']}, not those that "
        "the groups were given",
        guide=GUIDE,
    )
