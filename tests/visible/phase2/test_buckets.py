"""Visible tests of BucketedGradientAverager: gradients that are small numbers."""

import threading
import time

import torch
import torch.distributed as dist
from torch import nn

from gradsync.testing import assert_on_every_rank, check, exercise, raise_mistake, seen_of
from gradsync.text import counted, listed
from support.probes.bucket_marks import mark
from support.probes.names import PARTS, first_numbers, model_named, name_sets
from support.rules.buckets import (
    averaging_mistakes,
    between,
    bucket_sizes,
    lanes,
    waits_in_backward,
)
from support.rules.names import order_depends_on_names
from support.rules.wrong_results import ends_with

GUIDE = "Buckets and overlap"
CAP = 3000 / 2**20  # MiB: 3000 bytes, which is more than one of the layers below, less than two


class Layers(nn.Module):
    """Four weights of 512 floats; each element's gradient is the input, a single number."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(512) for _ in range(4))

    def forward(self, number, used=(0, 1, 2, 3), in_between=None):
        hidden = torch.zeros(())
        for layer in used:
            hidden = hidden + self.weights[layer].sum() * number
            if layer == 0 and in_between is not None:
                hidden.register_hook(in_between)  # in backward, when layers 3 to 1 are done
        return hidden


def numbers_in_gradients(model):
    return {
        str(layer): None if w.grad is None else w.grad[0].item()
        for layer, w in enumerate(model.weights)
    }


def same(number):
    """Return the gradients of a model in which every gradient is this number."""
    return {str(layer): float(number) for layer in range(4)}


@exercise("phase2/BucketedGradientAverager", points=1)
def test_gradients_are_the_mean_after_finish(ranks):
    """In two steps, the gradients are 2 and 6 by rank, then 4 and 10: the means are 4 and 7.

    The order of the parameters is the model's, because their names may differ between ranks.
    """

    def probe(rank, trainer):
        model = Layers()
        averager = trainer.BucketedGradientAverager(model)
        after = []
        for number in ([2.0, 4.0], [6.0, 10.0])[rank]:
            model.zero_grad()
            model(number).backward()
            averager.finish()
            after.append(numbers_in_gradients(model))
        return {f"{step}: {n}": g for step, grads in enumerate(after) for n, g in grads.items()}

    seen = ranks(probe, world_size=2)

    def both(first, second):
        return {f"{s}: {n}": g for s, x in enumerate((first, second)) for n, g in same(x).items()}

    assert_on_every_rank(
        seen,
        both(4, 7),
        mistakes=averaging_mistakes([both(2, 4), both(6, 10)]),
        otherwise="the gradients are 2 and 6 by rank in step 0, and 4 and 10 in step 1. They "
        f"should become 4 and then 7 on both ranks, but they become {list(seen)}",
    )

    def probe_names(rank, trainer, names):
        model = model_named(names[rank], rank)
        averager = trainer.BucketedGradientAverager(model)
        # With equal shares, two ranks that exchange parts in pairs would have equal results.
        share = 1 + 2 * rank  # part k has the gradient share * (k + 10 * rank)
        (share * model(torch.tensor(10.0 * rank))).backward()
        averager.finish()
        return first_numbers([param.grad for param in model.parameters()])

    again = seen_of(lambda: ranks(probe_names, world_size=2, names=name_sets(2, seed=1)))
    means = [15.0 + 2 * part for part in range(PARTS)]  # of 0 and 30, of 1 and 33, ...
    raise_mistake(order_depends_on_names(again, means, "averaged", GUIDE))


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_layer_that_one_rank_does_not_use(ranks):
    """Rank 1 does not use layer 2: the gradient is 6 on rank 0 and None on rank 1, the mean 3."""

    def probe(rank, trainer, cap):
        model = Layers()
        averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
        model(6.0, (0, 1, 2, 3) if rank == 0 else (0, 1, 3)).backward()
        averager.finish()
        return numbers_in_gradients(model)

    seen = ranks(probe, world_size=2, cap=CAP)

    expected = {**same(6), "2": 3.0}
    assert_on_every_rank(
        seen,
        expected,
        mistakes=[
            ends_with(
                [expected, {**expected, "2": None}],
                "none-gradient-skipped",
                "Rank 1 does not use layer 2, and its gradient is still None there. It counts as "
                "zero, so the mean is 3 on both ranks.",
                GUIDE,
            )
        ],
        otherwise="every gradient is 6, but rank 1 does not use layer 2, which counts as zero "
        f"there. The gradients should become {expected} on both ranks, but they become "
        f"{list(seen)}",
    )


@exercise("phase2/BucketedGradientAverager", points=1)
def test_no_sync_only_accumulates(ranks):
    """Gradients of 1 under no_sync() and 2 after it add up to 3; rank 1 has 10 + 20 = 30."""

    def probe(rank, trainer):
        group = dist.new_group()
        model = Layers()
        averager = trainer.BucketedGradientAverager(model)
        mark(group, 1)
        with averager.no_sync():
            model(1.0 * 10**rank).backward()
        mark(group, 2)
        model(2.0 * 10**rank).backward()
        averager.finish()
        return numbers_in_gradients(model)

    seen = ranks(probe, world_size=2)

    calls = between(seen, 0, (1, 2))
    check(
        not calls,
        "synchronised-too-often",
        f"Backward under no_sync() calls {listed(c.op for c in calls)}. It must only accumulate.",
        guide=GUIDE,
    )
    lost = "The gradients are 11, the mean of 2 and 20. The gradients of the backward under "
    lost += "no_sync() are lost: average the accumulated `grad`."
    assert_on_every_rank(
        seen,
        same(16.5),
        mistakes=[
            ends_with([same(11)] * 2, "accumulation-lost", lost, GUIDE),
            *averaging_mistakes([same(3), same(30)]),
        ],
        otherwise="the gradients 1 + 2 on rank 0 and 10 + 20 on rank 1 should become 16.5 on both, "
        f"but they become {list(seen)}",
    )


def probe_buckets(rank, trainer, cap):
    """Average once, with mark 1 before backward, 2 in the middle of rank 0's, and 3 at the end.

    Rank 1 begins its backward when rank 0's reaches its last layer, so rank 0 can't wait for it.
    """
    group = dist.new_group()
    model = Layers()
    options = {} if cap is None else {"bucket_cap_mb": cap}
    averager = trainer.BucketedGradientAverager(model, **options)

    def in_between(_grad):
        if threading.active_count() > 1:  # a helper thread may be about to send a bucket
            time.sleep(0.3)
        mark(group, 2)

    mark(group, 1)
    if rank == 1:
        mark(group, 2)
    model(1.0, in_between=in_between if rank == 0 else None).backward()
    averager.finish()
    mark(group, 3)


@exercise("phase2/BucketedGradientAverager", points=1)
def test_layers_share_a_bucket_within_the_cap(ranks):
    """Four weights of 2048 bytes: a cap of 25 MiB makes one bucket, one of 3000 bytes four."""
    for cap, wanted in ((None, 1), (CAP, 4)):
        seen = ranks(probe_buckets, world_size=2, cap=cap, mistakes=[waits_in_backward])

        sizes = bucket_sizes(between(seen, 0, (1, 3)))
        name = "25 MiB" if cap is None else "3000 bytes"
        check(
            len(sizes) == wanted,
            "not-in-buckets",
            f"Four weights of 512 floats (2048 bytes each) and a cap of {name}: the gradients are "
            f"sent in {counted(len(sizes), 'bucket')} of {sizes} floats, but should be sent in "
            f"{wanted}.",
            guide=GUIDE,
        )


@exercise("phase2/BucketedGradientAverager", points=1)
def test_the_first_bucket_is_sent_early(ranks):
    """When three of four layers have their gradients, at least one bucket has been sent."""
    seen = ranks(probe_buckets, world_size=2, cap=CAP, mistakes=[waits_in_backward])

    check(
        bool(lanes(between(seen, 0, (1, 2)))),
        "no-overlap",
        "Backward has reached its last layer, and no bucket has been sent, although three layers "
        "are done and each has its own bucket. Do not wait for the end of backward.",
        guide=GUIDE,
    )
