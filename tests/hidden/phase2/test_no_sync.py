"""Gradients accumulated by backward passes under no_sync()."""

import time

import numpy as np
import torch.distributed as dist

from gradsync.testing import assert_on_every_rank, by_rank, case_by_case, check, each, exercise
from gradsync.testing.values import close
from support.probes.bucket_marks import mark
from support.probes.buckets import ALL, SMALL, Net, backward, draw, gradients_of, own_gradients
from support.rules.bucket_timing import left_too_early, overwritten
from support.rules.buckets import (
    averaging_mistakes,
    between,
    lost_or_local,
    unlike_buckets,
)
from support.rules.gradients import mean_of

GUIDE = "Buckets and overlap"


def probe_no_sync(rank, trainer, inputs):
    """Return this rank's gradients after two passes under no_sync(), and after a third one."""
    group = dist.new_group()
    model = Net()
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=SMALL)
    mark(group, 1)
    with averager.no_sync():
        backward(model, inputs[0][rank])
        backward(model, inputs[1][rank])
    mark(group, 2)
    inside = gradients_of(model)
    backward(model, inputs[2][rank])
    averager.finish()
    return [inside, gradients_of(model)]


def probe_second(rank, world_size, trainer, inputs, cases):
    """Return this rank's gradients after two passes in each case of orders."""
    return [
        send_and_accumulate(rank, world_size, trainer, given, orders[rank])
        for given, orders in zip(inputs, cases, strict=True)
    ]


def send_and_accumulate(rank, world_size, trainer, inputs, order):
    """Return this rank's gradients after a normal pass and another under no_sync()."""
    model = Net()
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=SMALL)
    if rank == world_size - 1:
        time.sleep(0.05)  # the others' buckets can't be complete when they call finish()
    backward(model, inputs[0][rank], order)
    with averager.no_sync():
        backward(model, inputs[1][rank], order)
    averager.finish()
    return gradients_of(model)


@exercise("phase2/BucketedGradientAverager", points=1.5)
def test_no_sync_accumulates_and_sends_nothing(ranks, rng):
    """Backward under no_sync() calls no collective; the next one averages all gradients so far."""
    inputs = draw(rng, 3, 2)

    seen = ranks(probe_no_sync, 2, inputs=by_rank(inputs, 1))

    calls = [between(seen, rank, (1, 2)) for rank in range(2)]
    check(
        not any(calls),
        "synchronised-too-often",
        f"Two backward passes under no_sync() call {len(calls[0])} collectives on rank 0 and "
        f"{len(calls[1])} on rank 1. Under no_sync(), backward must only accumulate.",
        ranks=[rank for rank in range(2) if calls[rank]],
        guide=GUIDE,
    )
    inside = own_gradients(inputs[:2])
    wrong = [rank for rank in range(2) if not close(seen[rank][0], inside[rank])]
    check(
        not wrong,
        "accumulation-lost",
        "After two backward passes under no_sync(), a rank's `grad` is not the sum of its own "
        "gradients from both. Under no_sync(), backward must only accumulate.",
        ranks=wrong,
        guide=GUIDE,
    )
    early = left_too_early(inside, "accumulation-lost")
    after = each(seen, lambda value: value[1])
    check_sums_of_passes(after, inputs[:2], inputs[2:], lambda _both: early)


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_second_backward_before_finish(ranks, rng):
    """A backward under no_sync() after a normal one is included in the mean."""
    cases = [[ALL, ALL], [ALL, (0, 2)]]  # in the second case, rank 1 does not use a branch
    inputs = [draw(rng, 2, 2) for _ in cases]

    seen = ranks(probe_second, 2, inputs=by_rank(inputs, 2), cases=cases, mistakes=[unlike_buckets])

    by_case = case_by_case(seen, len(cases))
    for case, orders in enumerate(cases):
        sent, held = inputs[case][:1], inputs[case][1:]
        check_sums_of_passes(by_case[case], held, sent, overwritten, orders=orders)


def check_sums_of_passes(seen, held, sent, departure, **options):
    """Compare gradients with the means over all passes: under no_sync() (`held`) and `sent`.

    `departure` returns the rule for buckets sent in a wrong state, given each rank's gradients.
    """
    parts = own_gradients(held, **options), own_gradients(sent, **options)
    both = own_gradients(np.concatenate([held, sent]), **options)
    assert_on_every_rank(
        seen,
        mean_of(both),
        mistakes=[*lost_or_local(*parts), *averaging_mistakes(both, departures=[departure(both)])],
        otherwise="after passes under no_sync() and one outside of it, the gradients are not the "
        "mean over the ranks of the sum over the passes",
    )
