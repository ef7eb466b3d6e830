"""The norm of all gradients, of which each rank has a part, and clipping by it."""

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from gradsync.testing import by_rank, check, exercise, raise_mistake
from gradsync.testing.values import close
from gradsync.text import ranks_text
from support.probes.returned import float_returned
from support.probes.sharded import Chain, full_state, seeded, wrapped
from support.rules.clipping import GUIDE, norm_mistake

WIDTHS = [5, 7, 3]
check_that = partial(check, guide=GUIDE)


def probe(rank, trainer, seed, inputs, targets, cases):
    """Return for each case the norm, and what a step of size 1 subtracts afterwards.

    A case is a limit, and None or the rank and the value of a gradient that is not finite.
    """
    found = []
    for limit, poison in cases:
        model = wrapped(trainer, seeded(partial(Chain, WIDTHS), seed))
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = full_state(model)
        x, y = torch.from_numpy(inputs[rank]), torch.from_numpy(targets[rank])
        F.mse_loss(model(x), y, reduction="sum").backward()
        model.finish()
        if poison is not None and rank == poison[0]:
            next(p for p in model.parameters() if p.grad.numel() > 3).grad.view(-1)[1] = poison[1]
        old = [p.grad.clone() for p in model.parameters()]
        norm = float_returned(trainer.clip_grad_norm_(model, limit), "clip_grad_norm_")
        new = [p.grad for p in model.parameters()]
        same = all(
            torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(old, new, strict=True)
        )
        optimizer.step()
        after = full_state(model)
        found.append([norm, {name: before[name] - after[name] for name in before}, same])
    return found


def run(ranks, world_size, rng, *cases):
    seed = int(rng.integers(1000))
    x, y = (rng.standard_normal((world_size, 4, size)) for size in (WIDTHS[0], WIDTHS[-1]))
    seen = ranks(probe, world_size, seed=seed, inputs=by_rank(x), targets=by_rank(y), cases=cases)
    module = seeded(partial(Chain, WIDTHS), seed)
    for a, b in zip(x, y, strict=True):
        loss = F.mse_loss(module(torch.from_numpy(a)), torch.from_numpy(b), reduction="sum")
        (loss / world_size).backward()
    return seen, {name: np.asarray(p.grad) for name, p in module.named_parameters()}


def norm_of(grads):
    return math.sqrt(sum(float((grad**2).sum()) for grad in grads.values()))


@exercise("phase3/clip_grad_norm_", points=2)
def test_the_norm_is_that_of_all_gradients(ranks, rng):
    """The norm is that of the unsharded gradients, the same on every rank, on 3, 2 and 1."""
    for world_size in (3, 2, 1):
        seen, grads = run(ranks, world_size, rng, (1e9, None))

        raise_mistake(norm_mistake([value[0][0] for value in seen], grads))
        changed = [rank for rank, value in enumerate(seen) if not value[0][2]]
        check_that(
            not changed,
            "clipped-too-much",
            f"max_norm is 1e9, but the gradients are changed on {ranks_text(changed)}. Scale them "
            "only if their norm is larger than max_norm.",
            changed,
        )


@exercise("phase3/clip_grad_norm_", points=1.75)
def test_larger_gradients_are_scaled(ranks, rng):
    """All gradients, sharded and replicated, are scaled to the limit, on every rank."""
    limit = float(rng.uniform(0.2, 0.4))

    seen, grads = run(ranks, 2, rng, (limit, None))

    norm = norm_of(grads)
    raise_mistake(norm_mistake([value[0][0] for value in seen], grads, limit))
    wanted = {name: grad * (limit / norm) for name, grad in grads.items()}
    kept = {name: grad for name, grad in grads.items() if grad.ndim < 2}
    for rank, value in enumerate(seen):
        step = value[0][1]
        names = [name for name in wanted if not close(step[name], wanted[name])]
        text = f"After clipping to {limit:.3f}, the gradients of {', '.join(names)} are wrong. "
        if names and set(names) <= set(kept):
            text += "Scale the replicated gradients, too."
        elif names and all(close(step[name], grads[name]) for name in names):
            text += "They are not scaled."
        else:
            text += "Multiply every gradient by max_norm / norm, with the norm of all gradients."
        check_that(not names, "not-clipped", text, [rank])


@exercise("phase3/clip_grad_norm_", points=1.25)
def test_infinite_and_nan_norms_change_nothing(ranks, rng):
    """If one rank has an infinite or NaN gradient, every rank returns it and changes nothing."""
    cases = [(0.1, (1, math.inf)), (0.1, (1, math.nan)), (0.1, None)]  # the last one is clipped
    seen, grads = run(ranks, 2, rng, *cases)

    raise_mistake(norm_mistake([value[2][0] for value in seen], grads, 0.1))
    for number, (_, (_, bad)) in enumerate(cases[:2]):
        finite = [rank for rank, value in enumerate(seen) if math.isfinite(value[number][0])]
        check_that(
            not finite,
            "norm-of-one-shard",
            f"A gradient on rank 1 is {bad}, but the norm is finite on {ranks_text(finite)}. The "
            "norm of all gradients is not.",
            finite,
        )
        check_that(
            all(value[number][2] for value in seen),
            "clipped-too-much",
            f"A gradient on rank 1 is {bad}, so the norm is, too: leave the gradients as they are. "
            "Scaled by it, they would all become 0 or NaN, and hide what happened.",
            range(2),
        )
