"""The scale of the loss: unscaling, skipping on all ranks, and the scale's changes."""

import math
from contextlib import suppress
from functools import partial

import torch
from torch import nn

from gradsync.testing import check, exercise
from gradsync.testing.values import close
from gradsync.text import ranks_text
from support.probes.returned import number_of
from support.probes.sharded import wrapped

GUIDE = "Half precision"
check_that = partial(check, guide=GUIDE)


def make(trainer):
    """Return a model whose gradients a test sets: a sharded one, if that exercise is written."""
    module = nn.Linear(3, 4)
    with suppress(Exception):
        return wrapped(trainer, module)
    return module


def scale_of(scaler):
    return number_of(scaler.scale(torch.ones(())), "scale(loss)")


def probe(rank, trainer, rows, options, state=None):
    """Take a step for each row, with gradients of 1 times the scale, and return what happened.

    A row is what a rank's last gradient gets in its first element: 1 for nothing special.
    """
    model = make(trainer)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = trainer.LossScaler(**options)
    if state is not None:
        scaler.load_state_dict(state)
    seen = []
    for row in rows:
        scale = scale_of(scaler)
        for param in model.parameters():
            param.grad = torch.full_like(param, scale)
        param.grad.view(-1)[0] *= row[rank]
        before = [p.detach().clone() for p in model.parameters()]
        stepped = scaler.step(optimizer, model)
        pairs = zip(before, model.parameters(), strict=True)
        moved = [float((b - p).detach().view(-1)[-1]) for b, p in pairs]
        seen.append([scale, stepped if isinstance(stepped, bool) else None, moved])
    return {"steps": seen, "scale": scale_of(scaler), "state": scaler.state_dict()}


def check_steps(seen, rows, wanted):
    """Compare each step: the scale before it, whether it was taken, and how far it went."""
    for number, row in enumerate(rows):
        steps = [value["steps"][number] for value in seen]
        finite = all(math.isfinite(value) for value in row)
        moved = [any(step[2]) for step in steps]
        bad = [rank for rank, value in enumerate(row) if not math.isfinite(value)]
        case = f"Step {number + 1}" + (f", with {row[bad[0]]} on {ranks_text(bad)}" if bad else "")
        some = [rank for rank, m in enumerate(moved) if m]
        check_that(
            len(set(moved)) == 1,
            "skipped-on-one-rank",
            f"{case}: {ranks_text(some)} stepped, the others skipped. If any rank has an infinite "
            "or NaN gradient, all must skip: exchange the flag, and wait for it, first.",
            some,
        )
        check_that(
            finite or not moved[0],
            "infinity-missed",
            f"{case}: the optimizer stepped. Infinite and NaN gradients both make it skip.",
            range(len(seen)),
        )
        check_that(
            not finite or moved[0],
            "does-not-learn",
            f"{case}: all gradients are finite, but the optimizer did not step.",
            range(len(seen)),
        )
        check_that(
            not finite or all(close(step[2], [1.0] * len(step[2])) for step in steps),
            "scale-not-removed",
            f"{case}: a step of size 1 with gradients of 1, times the scale {steps[0][0]:g}, moved "
            f"the parameters by {steps[0][2]}. Divide all gradients by the scale before the step.",
            range(len(seen)),
        )
        check_that(
            all(step[1] is finite for step in steps),
            "wrong-signature",
            f"{case}: step() must return whether the optimizer stepped, {finite}.",
            range(len(seen)),
        )
    scales = [[step[0] for step in value["steps"]] + [value["scale"]] for value in seen]
    differ = [rank for rank in range(len(seen)) if scales[rank] != scales[0]]
    check_that(
        not differ,
        "scale-differs",
        f"The scales are {scales[0]} on rank 0, but {scales[differ[0]] if differ else ''} on "
        f"{ranks_text(differ)}. Every rank must change its scale in the same steps.",
        differ,
    )
    check_that(
        scales[0] == wanted,
        "scale-not-updated",
        f"The scales before each step, and after the last, are {scales[0]}, but should be "
        f"{wanted}: half after a skip, twice after growth_interval steps in a row without one.",
        range(len(seen)),
    )


@exercise("phase3/LossScaler", points=1.25)
def test_gradients_are_divided_by_the_scale(ranks, rng):
    """scale() multiplies the loss, and step() divides the gradients, sharded and replicated."""
    start = 2.0 ** int(rng.integers(3, 12))
    rows = [[1.0, 1.0]] * 2

    seen = ranks(probe, 2, rows=rows, options={"init_scale": start})

    check_steps(seen, rows, [start] * 3)


@exercise("phase3/LossScaler", points=2)
def test_all_ranks_skip_if_one_has_an_infinity(ranks, rng):
    """An infinite or NaN gradient on a single rank makes all skip, and halves all scales."""
    lost = int(rng.integers(3))
    rows = [[1.0] * 3 for _ in range(5)]
    rows[1][lost], rows[3][(lost + 1) % 3] = math.inf, math.nan

    seen = ranks(probe, 3, rows=rows, options={"init_scale": 64.0})

    check_steps(seen, rows, [64.0, 64.0, 32.0, 32.0, 16.0, 16.0])


@exercise("phase3/LossScaler", points=1.25)
def test_the_scale_doubles_after_steps_without_a_skip(ranks, rng):
    """After growth_interval steps in a row the scale doubles; a skip starts the count again."""
    rows = [[1.0, 1.0] for _ in range(12)]
    rows[4][int(rng.integers(2))] = -math.inf

    seen = ranks(probe, 2, rows=rows, options={"init_scale": 8.0, "growth_interval": 3})

    wanted = [8.0, 8.0, 8.0, 16.0, 16.0, 8.0, 8.0, 8.0, 16.0, 16.0, 16.0, 32.0, 32.0]
    check_steps(seen, rows, wanted)


@exercise("phase3/LossScaler", points=0.5)
def test_the_default_scale_and_its_state(ranks, rng):
    """It begins with 65536; a restored scaler goes on with the scale and the count."""
    rows = [[1.0, 1.0]] * 3

    first = ranks(probe, 2, rows=rows, options={"growth_interval": 4})
    options = {"init_scale": 2.0, "growth_interval": 4}
    again = ranks(probe, 2, rows=rows, options=options, state=first[0]["state"])

    check_steps(first, rows, [65536.0] * 4)
    scales = [[step[0] for step in value["steps"]] + [value["scale"]] for value in again]
    check_that(
        all(own == [65536.0, 131072.0, 131072.0, 131072.0] for own in scales),
        "state-lost",
        f"Restored after 3 of 4 steps without a skip, the scales before and after 3 more steps are "
        f"{scales[0]}. state_dict must have the scale and the number of steps since it changed: "
        "it doubles after the next one.",
        range(2),
    )
