"""Gradients in buckets: how many, how large, in which order, and how early they are sent."""

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

from gradsync.testing import check, exercise
from gradsync.testing.values import close
from gradsync.text import counted, listed, size_text
from support.probes.bucket_marks import mark
from support.probes.late_rank import let_rest
from support.rules.buckets import (
    averaged_elements,
    between,
    bucket_sizes,
    in_messages,
    in_objects,
    lanes,
    waits_in_backward,
)

GUIDE = "Buckets and overlap"
MIB = 2**20
SIZES = [2880, 2400, 3600, 2640, 3120]  # elements: no two of them fit under the cap
CAP = 3700 * 4 / MIB  # MiB
# Several fit under a cap of 1200, one does not; 720 and 440 together do, unless a MiB is 10**6.
MIXED = [480, 720, 440, 6000, 360, 600, 120, 840, 960]
CAPPED = [(MIXED, 1200), (SIZES, 3700)]
BESIDE = 32  # additional elements that a bucket may have: flags, counts, or alignment
OBJECT = 4096  # bytes that an object may have besides its gradients


class Chain(nn.Module):
    """A float32 model that uses parameters of any sizes one after the other."""

    def __init__(self, sizes):
        super().__init__()
        self.weights = nn.ParameterList(torch.full((size,), 0.01) for size in sizes)

    def forward(self, inputs, after_first=None, used=None):
        hidden = torch.zeros(())
        for number, weight in enumerate(self.weights[:used]):
            hidden = torch.tanh(hidden + inputs[: len(weight)] @ weight)
            if number == 0 and after_first is not None:
                hidden.register_hook(after_first)  # in backward, only this weight comes after it
        return hidden


def probe_buckets(rank, trainer, cases, steps):
    """Average the gradients of chains, with marks around each step; return the default cap."""
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
    """Return the marks before and after a step, counted from 0; no constructor is inside."""
    first = case * (steps + 1) + step + 1
    return first, first + 1


@exercise("phase2/BucketedGradientAverager", points=2)
def test_a_small_cap_makes_several_buckets(ranks):
    """No bucket exceeds the cap, except a single larger parameter; the last layers come first."""
    cases = [(sizes, cap * 4 / MIB) for sizes, cap in CAPPED]

    seen = ranks(probe_buckets, 2, cases=cases, steps=2)

    for (case, (sizes, cap)), step in itertools.product(enumerate(CAPPED), range(2)):
        stretch = stretch_of(case, step, 2)
        by_rank = [bucket_sizes(between(seen, rank, stretch)) for rank in range(2)]
        check_packing(by_rank[0], averaged_elements(seen, stretch), sizes, cap, seen)
        check(
            in_messages(seen) or by_rank[0] == by_rank[1],
            "deadlock-order-differs",
            "The ranks do not start buckets of the same sizes in the same order. The sizes, in "
            f"elements, are {by_rank} (one list per rank). All ranks must use the same order.",
            ranks=range(2),
            guide=GUIDE,
        )


def check_packing(buckets, averaged, sizes, cap, seen):
    """Compare one rank's buckets, in the order in which they were sent, with the parameters."""
    case = (
        f"{len(sizes)} parameters of {sizes} floats, with a cap (`bucket_cap_mb`) of {cap} floats"
    )
    total, unit, pieces = sum(sizes), "", in_messages(seen)
    everyone = tuple(range(len(seen)))
    if in_objects(seen):
        buckets, unit = [max(0, size - OBJECT) // 4 for size in buckets], "about "
        averaged = sum(buckets)

    def require(holds, code, text):
        text = f"{case}: {text}"
        check(holds, code, text, ranks=everyone, guide=GUIDE)

    require(bool(buckets), "gradients-not-synchronised", "no collective sends gradients.")
    require(
        averaged <= 1.5 * total,
        "synchronised-too-often",
        f"one backward and finish() average {unit}{averaged} floats, but there are only {total} "
        "gradients. Send each gradient once.",
    )
    require(
        pieces or (len(buckets) > 1 and (sizes is SIZES or len(buckets) < len(sizes))),
        "not-in-buckets",
        f"the gradients are sent in {counted(len(buckets), 'bucket')}, of {buckets} floats. Fill "
        "each bucket until the next parameter would exceed the cap.",
    )
    single = {*sizes, *(math.ceil(size / len(seen)) for size in sizes if pieces)}
    larger = [
        size
        for size in buckets
        if size > cap + BESIDE and not any(0 <= size - one <= BESIDE for one in single)
    ]
    require(
        not larger,
        "not-in-buckets",
        f"there are buckets of {larger} floats. Only a single parameter may exceed the cap.",
    )
    if unit or pieces:
        return
    require(
        in_reverse_order(buckets, sizes),
        "not-in-buckets",
        f"the buckets, in the order in which they are sent, have {buckets} floats, which are not "
        "complete parameters from the last to the first. Backward computes the last layer's "
        "gradients first, so send them first.",
    )
    for whole, following in parameters_of(buckets, sizes):
        require(
            whole + following + BESIDE > cap,
            "not-in-buckets",
            f"the buckets have {buckets} floats. The bucket of {whole} floats has room for the "
            f"next parameter ({following}), but was sent without it. Fill a bucket until the next "
            "parameter would exceed the cap. A MiB has 2**20 bytes.",
        )


def in_reverse_order(buckets, sizes):
    """Return whether each bucket has complete parameters, always the last of the remaining."""
    filled = parameters_of(buckets, sizes)
    return all(bucket - whole <= BESIDE for bucket, (whole, _) in zip(buckets, filled, strict=True))


def parameters_of(buckets, sizes):
    """Return the elements of the complete parameters in each bucket, and of the next parameter.

    If there is no next parameter, its size is infinite.
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
    """With the default cap, all gradients of a small model are sent in one bucket."""
    seen = ranks(probe_buckets, 2, cases=[(MIXED, None)], steps=1)

    by_lane = lanes(between(seen, 0, (1, 2)))
    counts = {op: len(found) for (op, _), found in by_lane.items()}
    most = max((n if op != "send" else n / 2 for op, n in counts.items()), default=0)
    check(
        most > 0,
        "gradients-not-synchronised",
        "No collective sends gradients. Average them over the ranks.",
        guide=GUIDE,
    )
    check(
        most <= 1,
        "not-in-buckets",
        f"The gradients of {len(MIXED)} parameters, {size_text(4 * sum(MIXED))} in all, are sent "
        f"with {calls_text(counts)}. They fit into one bucket of at most 25 MiB, and every further "
        "message waits for the network again. Send them together.",
        ranks=range(2),
        guide=GUIDE,
    )
    default = seen[0]
    check(
        default in (25.0, None),  # None: the default is not a number, but may mean 25
        "wrong-signature",
        f"The default of `bucket_cap_mb` is {default}. It must be 25.0 (MiB), because callers may "
        "omit it.",
        guide=GUIDE,
    )


def calls_text(counts):
    return listed(f"{counted(n, 'call')} of {op}" for op, n in counts.items())


SECOND, INTERRUPTED, UNUSED = (
    "after the first one",
    "after a no_sync() block that ended with an exception",
    "after a step that did not use the last layer",
)
ADVICE = {
    SECOND: "Send a bucket as soon as its gradients are ready, so that it overlaps with backward.",
    INTERRUPTED: "Let the end of no_sync() restore its state in a `finally`.",
    UNUSED: "Reset your counters of ready gradients in each pass.",
}


def probe_overlap(rank, trainer, sizes, cap, moments):
    """Return the gradients of one chain for each moment in which overlap is checked."""
    group = dist.new_group()
    return [
        overlap(rank, trainer, sizes, cap, when, group, marks=(2 * number + 1, 2 * number + 2))
        for number, when in enumerate(moments)
    ]


def overlap(rank, trainer, sizes, cap, when, group, marks):
    """Run rank 0's backward before the other ranks begin theirs.

    They begin when rank 0 reaches its first layer, which is the last one in backward. By then,
    rank 0 may have started to average buckets, but can't have waited for one.
    """
    model = Chain(sizes)
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
    inputs = torch.linspace(-0.1, 0.1, max(sizes)) * (rank + 1)

    def at_the_first_layer(_grad):
        if threading.active_count() > 1:  # a helper thread may be about to send a bucket
            let_rest([os.getpid()])
        mark(group, marks[1])

    if when != INTERRUPTED:  # this case has no earlier step
        model(inputs, used=-1 if when == UNUSED else None).backward()
        averager.finish()
        model.zero_grad()
    with contextlib.suppress(ZeroDivisionError), averager.no_sync():
        model(inputs).backward()
        if when == INTERRUPTED:
            raise ZeroDivisionError
    mark(group, marks[0])
    if rank != 0:
        mark(group, marks[1])
    model(inputs, at_the_first_layer if rank == 0 else None).backward()
    averager.finish()
    return [weight.grad for weight in model.weights]


@pytest.mark.parametrize(
    "moments",
    [[SECOND], [INTERRUPTED, UNUSED]],
    ids=["in the second step", "whatever happened before"],
)
@exercise("phase2/BucketedGradientAverager", points=3)
def test_buckets_are_sent_during_backward(ranks, moments):
    """The first bucket is sent before backward ends, and backward does not wait for it."""
    options = {"sizes": SIZES, "cap": CAP, "moments": moments}
    seen = ranks(probe_overlap, 2, mistakes=[waits_in_backward], **options)

    for number, when in enumerate(moments):
        check(
            bool(lanes(between(seen, 0, (2 * number + 1, 2 * number + 2)))),
            "no-overlap",
            f"In a step {when}, backward had computed all gradients except the first layer's, but "
            f"no bucket was sent, although the cap makes {len(SIZES)} buckets. "
            f"{ADVICE[when]}",
            ranks=range(2),
            guide=GUIDE,
        )
    check_same_gradients(seen)


def check_same_gradients(seen):
    check(
        all(close(value, seen[0]) for value in seen),
        "gradients-not-synchronised",
        "Buckets are sent during backward, but after finish() the ranks have different gradients.",
        ranks=range(len(seen)),
        guide=GUIDE,
    )
