"""Gradients in buckets: how many, how large, in which order, and how early they leave."""

import contextlib
import inspect
import itertools
import math
import os
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradsync.diagnose.buckets import (
    averaged_elements,
    between,
    bucket_sizes,
    in_messages,
    in_objects,
    lanes,
    waits_in_backward,
)
from gradsync.diagnose.values import close
from gradsync.probes.gates import let_rest
from gradsync.probes.marks import mark
from gradsync.testing import check, exercise

GUIDE = "Buckets and overlap"
MIB = 2**20
SIZES = [2880, 2400, 3600, 2640, 3120]  # elements: no two of them are within the cap
CAP = 3700 * 4 / MIB  # MiB
# Some are within a cap of 1200, one is not; 720 and 440 together are, unless a MiB is 10**6 bytes.
MIXED = [480, 720, 440, 6000, 360, 600, 120, 840, 960]
CAPPED = [(MIXED, 1200), (SIZES, 3700)]
BESIDE = 32  # elements that a bucket may hold besides: flags, counts, or what aligns it
OBJECT = 4096  # bytes that an object may hold besides its gradients


class Chain(nn.Module):
    """A number that passes through one parameter after the other, of any sizes; of float32."""

    def __init__(self, sizes):
        super().__init__()
        self.weights = nn.ParameterList(torch.full((size,), 0.01) for size in sizes)

    def forward(self, inputs, after_first=None, used=None):
        hidden = torch.zeros(())
        for number, weight in enumerate(self.weights[:used]):
            hidden = torch.tanh(hidden + inputs[: len(weight)] @ weight)
            if number == 0 and after_first is not None:
                hidden.register_hook(after_first)  # in backward, all weights but this come before
        return hidden


def probe_buckets(rank, trainer, cases, steps):
    """Average the gradients of chains, each step between marks; return the default cap in MiB."""
    group = dist.new_group()
    for case, (sizes, cap) in enumerate(cases):
        model = Chain(sizes)
        options = {} if cap is None else {"bucket_cap_mb": cap}
        averager = trainer.BucketedGradientAverager(model, **options)
        for step in range(steps):
            mark(group, stretch_of(case, step, steps)[0])
            model(torch.linspace(-0.1, 0.1, max(sizes)) * (rank + 1)).backward()
            averager.finish()
        mark(group, stretch_of(case, step, steps)[1])
    known = inspect.signature(trainer.BucketedGradientAverager).parameters
    default = known["bucket_cap_mb"].default if "bucket_cap_mb" in known else None
    return float(default) if isinstance(default, (int, float)) else None


def stretch_of(case, step, steps):
    """Return the marks around a step, all from 0; none of them is around a later constructor."""
    first = case * (steps + 1) + step + 1
    return first, first + 1


@exercise("phase2/BucketedGradientAverager", points=2)
def test_a_small_cap_makes_several_buckets(ranks):
    """Buckets hold the cap at most, a single larger parameter apart, the last layers come first."""
    cases = [(sizes, cap * 4 / MIB) for sizes, cap in CAPPED]

    seen = ranks(probe_buckets, 2, cases=cases, steps=2)

    for (case, (sizes, cap)), step in itertools.product(enumerate(CAPPED), range(2)):
        stretch = stretch_of(case, step, 2)
        by_rank = [bucket_sizes(between(seen, rank, stretch)) for rank in range(2)]
        hold_packing(by_rank[0], averaged_elements(seen, stretch), sizes, cap, seen)
        check(
            in_messages(seen) or by_rank[0] == by_rank[1],
            "deadlock-order-differs",
            f"the ranks do not start buckets of the same sizes in the same order: {by_rank} "
            "elements, by rank",
            ranks=range(2),
            guide=GUIDE,
        )


def hold_packing(buckets, averaged, sizes, cap, seen):
    """Hold one rank's buckets, in the order in which they left, against the parameters' sizes."""
    case = f"{len(sizes)} parameters of {sizes} floats, of which {cap} fit into `bucket_cap_mb`"
    total, unit, pieces = sum(sizes), "", in_messages(seen)
    everyone = tuple(range(len(seen)))
    if in_objects(seen):
        buckets, unit = [max(0, size - OBJECT) // 4 for size in buckets], "about "
        averaged = sum(buckets)

    def hold(holds, code, text):
        text = f"{case}: {text}"
        check(holds, code, text, ranks=everyone, guide=GUIDE)

    hold(bool(buckets), "gradients-not-synchronised", "no collective carries any gradients")
    hold(
        averaged <= 1.5 * total,
        "synchronised-too-often",
        f"one backward and finish() average {unit}{averaged} floats, though the gradients are "
        f"{total}: each gradient is sent once",
    )
    hold(
        pieces or (len(buckets) > 1 and (sizes is SIZES or len(buckets) < len(sizes))),
        "not-in-buckets",
        f"they travel in {len(buckets)} messages, of {buckets} floats. A bucket takes parameters "
        "until the next one would not fit any more",
    )
    single = {*sizes, *(math.ceil(size / len(seen)) for size in sizes if pieces)}
    larger = [
        size
        for size in buckets
        if size > cap + BESIDE and not any(0 <= size - one <= BESIDE for one in single)
    ]
    hold(
        not larger,
        "not-in-buckets",
        f"there are buckets of {larger} floats: only a single parameter may be larger than the cap",
    )
    if unit or pieces:
        return
    hold(
        in_reverse_order(buckets, sizes),
        "not-in-buckets",
        f"buckets of {buckets} floats leave in this order, which is not that of the parameters "
        "from the last to the first, each as a whole: backward makes the last layer's gradients "
        "first, and these can leave first",
    )
    for whole, following in parameters_of(buckets, sizes):
        hold(
            whole + following + BESIDE > cap,
            "not-in-buckets",
            f"there are buckets of {buckets} floats: the one of {whole} leaves without the next "
            f"parameter, of {following}, though both together are within the cap. A bucket is "
            "filled until the next parameter would exceed `bucket_cap_mb`, in MiB of 2**20 bytes",
        )


def in_reverse_order(buckets, sizes):
    """Tell whether each bucket is of whole parameters, the last of those that are left."""
    filled = parameters_of(buckets, sizes)
    return all(bucket - whole <= BESIDE for bucket, (whole, _) in zip(buckets, filled, strict=True))


def parameters_of(buckets, sizes):
    """Return the elements of the whole parameters in each bucket, and of the next parameter.

    After the last one it is as large as can be.
    """
    left, filled = list(sizes), []
    for bucket in buckets:
        whole = 0
        while left and whole + left[-1] <= bucket:
            whole += left.pop()
        filled.append((whole, left[-1] if left else math.inf))
    return filled


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_small_model_is_one_bucket(ranks):
    """With the default cap, the gradients of a small model travel all together."""
    seen = ranks(probe_buckets, 2, cases=[(MIXED, None)], steps=1)

    by_lane = lanes(between(seen, 0, (1, 2)))
    counts = {op: len(found) for (op, _), found in by_lane.items()}
    most = max((n if op != "send" else n / 2 for op, n in counts.items()), default=0)
    check(
        most > 0,
        "gradients-not-synchronised",
        "no collective carries any gradients",
        guide=GUIDE,
    )
    check(
        most <= 1,
        "not-in-buckets",
        f"the gradients of {len(MIXED)} parameters, {4 * sum(MIXED)} bytes together, take "
        f"{told(counts)}: within the cap of 25 MiB all of them are one bucket, and every message "
        "more costs another wait for the network",
        ranks=range(2),
        guide=GUIDE,
    )
    default = seen[0]
    check(
        default in (25.0, None),  # None: it is no number, but may stand for one
        "wrong-signature",
        f"the default of `bucket_cap_mb` is {default}: it is 25 MiB for everyone, who leaves it "
        "out counts on that",
        guide=GUIDE,
    )


def told(counts):
    return " and ".join(f"{n} times {op}" for op, n in counts.items())


SECOND, BROKEN_OFF, UNUSED = (
    "in the second step",
    "in a step after a no_sync() block that ended with an exception",
    "in a step after one that did not use the last layer",
)


def probe_overlap(rank, trainer, sizes, cap, moments):
    """Return the gradients of one chain after the other, whose backward overlaps at a moment."""
    group = dist.new_group()
    return [
        overlap(rank, trainer, sizes, cap, when, group, marks=(2 * number + 1, 2 * number + 2))
        for number, when in enumerate(moments)
    ]


def overlap(rank, trainer, sizes, cap, when, group, marks):
    """Rank 0 goes through its backward while the others have yet to begin theirs.

    They begin when rank 0 has come to its first layer, the last one in backward: to get there,
    it may have started to average, but can't have waited for it.
    """
    model = Chain(sizes)
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
    inputs = torch.linspace(-0.1, 0.1, max(sizes)) * (rank + 1)

    def at_the_first_layer(_grad):
        if threading.active_count() > 1:  # a helper may be about to start what it was given
            let_rest([os.getpid()])
        mark(group, marks[1])

    if when != BROKEN_OFF:  # that is the first step
        model(inputs, used=-1 if when == UNUSED else None).backward()
        averager.finish()
        model.zero_grad()
    with contextlib.suppress(ZeroDivisionError), averager.no_sync():
        model(inputs).backward()
        if when == BROKEN_OFF:
            raise ZeroDivisionError
    mark(group, marks[0])
    if rank != 0:
        mark(group, marks[1])
    model(inputs, at_the_first_layer if rank == 0 else None).backward()
    averager.finish()
    return [weight.grad for weight in model.weights]


@pytest.mark.parametrize(
    "moments", [[SECOND], [BROKEN_OFF, UNUSED]], ids=[SECOND, "whatever came before"]
)
@exercise("phase2/BucketedGradientAverager", points=3)
def test_buckets_leave_while_backward_goes_on(ranks, moments):
    """The first bucket is on its way, and nobody waits for it, before backward has ended."""
    options = {"sizes": SIZES, "cap": CAP, "moments": moments}
    seen = ranks(probe_overlap, 2, mistakes=[waits_in_backward], **options)

    for number, when in enumerate(moments):
        check(
            bool(lanes(between(seen, 0, (2 * number + 1, 2 * number + 2)))),
            "no-overlap",
            "when backward has made all gradients but those of the first layer, "
            f"{when}, not a single bucket is on its way, though the cap makes {len(SIZES)} of "
            "them: a bucket leaves as soon as its gradients are there, whatever came before, or "
            "backward and communication take turns",
            ranks=range(2),
            guide=GUIDE,
        )
    hold_same_gradients(seen)


def hold_same_gradients(seen):
    check(
        all(close(value, seen[0]) for value in seen),
        "gradients-not-synchronised",
        "buckets left during backward, but after finish() the ranks have different gradients",
        ranks=range(len(seen)),
        guide=GUIDE,
    )
