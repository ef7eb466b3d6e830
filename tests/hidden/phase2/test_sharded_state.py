"""The state of a sharded optimizer, and its interface as an optimizer."""

import math

import torch
import torch.distributed as dist

from gradsync.testing import assert_on_every_rank, by_rank, each, exercise, raise_mistake
from support.probes.optimizers import elements, parameters, watched
from support.probes.ready_made import ZERO, without
from support.probes.returned import number_or_nan
from support.probes.seeding import seed_weights
from support.probes.sharding import ALIKE, GROUPS, probe_groups, probe_state
from support.rules.sharding import (
    closure_misused,
    closure_without_gradients,
    not_sharded,
    step_mistakes,
    unevenly_sharded,
    unlike_an_optimizer,
)


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

    mistakes = [closure_without_gradients]
    seen = ranks(probe_closure, 3, shapes=shapes, targets=by_rank(targets), mistakes=mistakes)

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
    assert_on_every_rank(
        each(seen, lambda value: [value["after"]]),
        [[param.detach() for param in params]],
        mistakes=step_mistakes(
            [param.detach() for param in make_params(shapes)], "After two calls of step(closure)"
        ),
    )
    raise_mistake(closure_misused(seen, losses))
    raise_mistake(not_sharded([value["kept"] for value in seen], elements([optimizer.state])))


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
        sizes = [math.prod(shape) for shape in known]
        raise_mistake(unevenly_sharded([v[moment] for v in seen], sizes, moments[moment]))


@exercise("phase2/ShardedOptimizer", points=0.5)
def test_it_is_an_optimizer_over_all_parameters(ranks):
    """It is an Optimizer with all parameters in its groups, and zero_grad clears all gradients."""
    seen = ranks(probe_groups, 2)

    raise_mistake(unlike_an_optimizer(seen, GROUPS))
