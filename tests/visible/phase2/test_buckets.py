"""Visible tests of BucketedGradientAverager: gradients that are small numbers."""

from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from gradsync.testing import (
    assert_on_every_rank,
    case_by_case,
    check,
    each,
    exercise,
    raise_mistake,
    seen_of,
)
from gradsync.text import listed
from support.probes.bucket_marks import mark
from support.probes.chains import probe_buckets, probe_overlap, stretch_of
from support.probes.names import PARTS, first_numbers, model_named, name_sets
from support.rules.bucket_timing import (
    empty_in_hook,
    hooks_too_early,
    left_too_early,
    overwritten,
    seen_too_early,
)
from support.rules.buckets import (
    averaged_elements,
    averaging_mistakes,
    between,
    left_in_bucket,
    lost_or_local,
    only_these_wrong,
    some_undivided,
    unlike_buckets,
    waits_in_backward,
)
from support.rules.gradients import mean_of
from support.rules.names import mixed_means, order_depends_on_names
from support.rules.packing import not_one_bucket, nothing_sent_early, packed_wrongly, sent_again
from support.rules.rounding import OF_FLOAT64

GUIDE = "Buckets and overlap"
MIB = 2**20
SIZES = [400, 500, 600, 700]  # elements of the layers
SMALL = 3000 / MIB  # 3000 bytes, 750 floats: less than two of the layers
ALL = (0, 1, 2, 3)


class Layers(nn.Module):
    """A weight for each size. In a pass with a number, weight k has the gradient number + k."""

    def __init__(self, dtypes=(torch.float32,) * 4):
        super().__init__()
        pairs = zip(SIZES, dtypes, strict=True)
        self.weights = nn.ParameterList(torch.zeros(n, dtype=dtype) for n, dtype in pairs)

    def forward(self, number, used=ALL):
        total = torch.zeros(())
        for layer in used:
            total = total + self.weights[layer].sum() * (number + layer)
        return total


def gradients_of(model):
    """Return the first number of each gradient, by layer."""
    grads = [weight.grad for weight in model.weights]
    return {f"layer {layer}": None if g is None else g[0].item() for layer, g in enumerate(grads)}


def own(number, used=ALL):
    """Return a rank's gradients in a pass with this number."""
    return {f"layer {layer}": float(number + layer) * (layer in used) for layer in ALL}


def added(*passes):
    return {name: sum(grads[name] for grads in passes) for name in passes[0]}


def assert_means(ranks, seen, local, mistakes=(), departures=(), steps=1, **options):
    """Compare the gradients with the mean of the ranks' own ones, `local`."""
    zeros = [dict.fromkeys(grads, 0.0) for grads in local]
    early = left_too_early(zeros, "only-some-parameters", local, steps * sum(SIZES))
    hooks = hooks_too_early(ranks.source("template_trainer.py"))
    stale, other = seen_too_early(local)
    departures = [stale] * hooks + [early, *departures]
    known = averaging_mistakes(local, departures=departures, steps=steps) + [other] * hooks
    assert_on_every_rank(
        seen,
        mean_of(local),
        mistakes=[*mistakes, some_undivided, *known],
        otherwise=f"by layer, the gradients of the ranks are {listed(local)}. They should become "
        f"{mean_of(local)}, but they become {list(seen)}",
        **options,
    )


# First: an order that depends on addresses can spoil the results of the others by chance.
@exercise("phase2/BucketedGradientAverager", points=1)
def test_the_order_does_not_depend_on_names(ranks):
    """The parameters have other names on each rank, in the same order, and belong together."""

    def probe(rank, trainer, names):
        model = model_named(names[rank], rank)
        averager = trainer.BucketedGradientAverager(model)
        # With equal shares, two ranks that exchange parts in pairs would have equal results.
        share = 1 + 2 * rank  # part k has the gradient share * (k + 10 * rank)
        (share * model(torch.tensor(10.0 * rank))).backward()
        averager.finish()
        return first_numbers([param.grad for param in model.parameters()])

    seen = seen_of(lambda: ranks(probe, world_size=2, names=name_sets(2, seed=1)))

    means = [15.0 + 2 * part for part in range(PARTS)]  # of 0 and 30, of 1 and 33, ...
    possible = mixed_means([[(1 + 2 * r) * (k + 10.0 * r) for k in range(PARTS)] for r in range(2)])
    raise_mistake(order_depends_on_names(seen, means, possible, "averaged", GUIDE))
    assert_on_every_rank(seen, means)


@exercise("phase2/BucketedGradientAverager", points=1)
def test_gradients_are_the_mean_after_finish(ranks):
    """With the number 2 on rank 0 and 6 on rank 1, the layers' gradients become 4, 5, 6 and 7.

    In the next step, with 4 and 10, they become 7 to 10. The same with a bucket for each layer.
    """

    def probe(rank, trainer, numbers, caps):
        after = []
        for cap in caps:
            model = Layers()
            averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
            for step in numbers:
                model.zero_grad()
                model(step[rank]).backward()
                averager.finish()
                after.append(gradients_of(model))
        return after

    numbers = [[2.0, 6.0], [4.0, 10.0]]
    hooks = hooks_too_early(ranks.source("template_trainer.py"))
    options = {"numbers": numbers, "caps": [25.0, SMALL], "mistakes": [empty_in_hook] * hooks}
    seen = ranks(probe, world_size=2, **options)

    for step, of_step in zip([*numbers, *numbers], case_by_case(seen, 4), strict=True):
        assert_means(ranks, of_step, [own(number) for number in step], steps=4)
    raise_mistake(sent_again(seen, SIZES, steps=4))


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_single_rank_keeps_its_gradients(ranks):
    """On one rank, the mean is the rank's own gradient: 2, 3, 4 and 5."""

    def probe(trainer):
        model = Layers()
        averager = trainer.BucketedGradientAverager(model)
        model(2.0).backward()
        averager.finish()
        return gradients_of(model)

    seen = ranks(probe, world_size=1)

    assert_means(ranks, seen, [own(2)])


def probe_used(rank, trainer, orders, cap):
    """Average gradients in a pass with these layers, in one with all of them, and in a third.

    The third is like the first.

    The number is 6 on rank 0 and 2 on rank 1.
    """
    model = Layers()
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
    after = []
    for used in (orders[rank], ALL, orders[rank]):
        model.zero_grad()
        model(6.0 if rank == 0 else 2.0, used).backward()
        averager.finish()
        after.append(gradients_of(model))
    return after


def assert_used(ranks, orders, cap, mistakes=()):
    """Check the gradients of the passes of `probe_used`."""
    seen = ranks(probe_used, world_size=2, orders=orders, cap=cap, mistakes=[unlike_buckets])

    first, second, third = case_by_case(seen, 3)
    partly, all_layers = [own(6, orders[0]), own(2, orders[1])], [own(6), own(2)]
    assert_means(ranks, first, partly, mistakes)
    assert_means(ranks, second, all_layers)
    left = left_in_bucket(partly, mean_of(all_layers))
    assert_means(ranks, third, partly, [*left, *mistakes])


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_layer_that_one_rank_does_not_use(ranks):
    """Layer 2's gradient is 8 on rank 0 and None on rank 1, so 4 after it; next, both use it.

    Then again only rank 0 uses it.
    """
    zero = (
        "Rank 1 does not use layer 2, so its gradient there counts as zero: of 8 and 0 the mean is "
        "4. Write it into `grad` on both ranks."
    )
    rule = only_these_wrong(["layer 2"], "none-gradient-skipped", zero)
    for cap in (SMALL, 5400 / MIB):  # a bucket of its own, or one that layer 3 shares
        assert_used(ranks, [ALL, (0, 1, 3)], cap, [rule])


@exercise("phase2/BucketedGradientAverager", points=1)
def test_layers_are_ready_in_another_order_on_each_rank(ranks):
    """Rank 0 uses the layers in the order 0, 1, 2, 3, and rank 1 in the order 2, 3, 0, 1."""
    assert_used(ranks, [ALL, (2, 3, 0, 1)], SMALL)


def idle_rank(seen, _expected):
    """Recognise a deadlock of a rank that starts too few buckets in finish()."""
    if seen.failure is None or seen.failure.status != "deadlock":
        return None
    if found := sent_again(seen, SIZES, steps=2):
        return found
    text = (
        "Rank 1 had no backward that sends before finish(), which must start all buckets that are "
        "not sent yet, in every step. "
    )
    found = seen.failure.diagnosis
    return replace(found, explanation=f"{text}{found.explanation}", guide=GUIDE)


def average_once(rank, trainer, model, used=ALL):
    """Average the gradients of a model, with the number 6 on rank 0 and 2 on rank 1."""
    averager = trainer.BucketedGradientAverager(model)
    model(6.0 if rank == 0 else 2.0, used).backward()
    averager.finish()
    return gradients_of(model)


@exercise("phase2/BucketedGradientAverager", points=1)
def test_frozen_parameters_are_left_alone(ranks):
    """Layer 1 is frozen, and its `grad` stays 10 on rank 0 and 20 on rank 1."""

    def probe(rank, trainer):
        model = Layers()
        model.weights[1].requires_grad_(False)
        model.weights[1].grad = torch.full((SIZES[1],), 10.0 * (rank + 1))
        return average_once(rank, trainer, model)

    seen = ranks(probe, world_size=2)

    frozen = [value["layer 1"] for value in seen]
    check(
        frozen == [10.0, 20.0],
        "frozen-touched",
        "Layer 1 is frozen. Its `grad` was 10 on rank 0 and 20 on rank 1 before finish(), and is "
        f"{listed(frozen)} after it. Use only parameters that require gradients.",
        guide=GUIDE,
    )
    assert_means(
        ranks, without(seen, "layer 1"), [leaving(own(number), "layer 1") for number in (6, 2)]
    )


def without(seen, layer):
    return each(seen, lambda grads: leaving(grads, layer))


def leaving(grads, layer):
    return {name: grad for name, grad in grads.items() if name != layer}


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_layer_that_no_rank_uses(ranks):
    """Layer 2 is used on no rank: its gradient is None or zero, and the others are averaged."""

    def probe(rank, trainer):
        return average_once(rank, trainer, Layers(), (0, 1, 3))

    seen = ranks(probe, world_size=2)

    assert_means(
        ranks, without(seen, "layer 2"), [leaving(own(number), "layer 2") for number in (6, 2)]
    )
    wrong = [grads["layer 2"] for grads in seen if grads["layer 2"] not in (None, 0.0)]
    check(
        not wrong,
        "only-some-parameters",
        f"No rank uses layer 2, but its gradient is {listed(wrong)}. It must be None or zero.",
        guide=GUIDE,
    )


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_shared_weight_is_averaged_once(ranks):
    """Layers 1 and 2 share a weight: 7 + 8 on rank 0 and 3 + 4 on rank 1 become 11."""

    def probe(rank, trainer):
        model = Layers()
        model.weights[2] = model.weights[1]
        return average_once(rank, trainer, model)

    seen = ranks(probe, world_size=2)

    local = [
        {**grads, "layer 1": both, "layer 2": both}
        for grads, both in ((own(6), 15.0), (own(2), 7.0))
    ]
    once = "A weight that two layers share is one parameter: average it once."
    assert_means(
        ranks,
        seen,
        local,
        [only_these_wrong(["layer 1", "layer 2"], "tied-parameters-wrong", once)],
    )
    sent = averaged_elements(seen)
    check(
        sent < 1.25 * (sum(SIZES) - SIZES[2]),
        "tied-parameters-wrong",
        f"The ranks average {sent} elements, but the model has {sum(SIZES) - SIZES[2]}. {once}",
        guide=GUIDE,
    )


@exercise("phase2/BucketedGradientAverager", points=1)
def test_every_gradient_is_averaged_in_its_own_dtype(ranks):
    """Layers 0 and 2 are of float64: 1/3 + 1/3 + 1 and so on keep all of their digits."""

    def probe(rank, trainer):
        model = Layers([torch.float64, torch.float32] * 2)
        averager = trainer.BucketedGradientAverager(model)
        model(torch.tensor((6.0 if rank == 0 else 2.0) / 3, dtype=torch.float64)).backward()
        averager.finish()
        kinds = [str(weight.grad.dtype) for weight in model.weights if weight.grad is not None]
        return [gradients_of(model), kinds]

    seen = ranks(probe, world_size=2)

    averaged = each(seen, lambda value: value[0])
    local = [own(6 / 3), own(2 / 3)]
    assert_means(ranks, averaged, local)
    doubles = [{name: grads[name] for name in ("layer 0", "layer 2")} for grads in local]
    seen_doubles = without(without(averaged, "layer 1"), "layer 3")
    assert_means(ranks, seen_doubles, doubles, roundings=OF_FLOAT64)
    kinds = seen[0][1]
    check(
        kinds == ["torch.float64", "torch.float32"] * 2,
        "shape-mismatch",
        f"The weights are of float64 and float32 in turn, but after finish() their gradients are "
        f"of {listed(kinds)}. Average each gradient in its own dtype.",
        guide=GUIDE,
    )


def probe_no_sync(rank, trainer, cap):
    """Return the gradients after passes under no_sync() before the one that sends, and after it.

    The numbers are 10 and 20 under no_sync(), and 1 in the pass that sends; on rank 1 twice that.
    """
    group = dist.new_group()
    after = []
    for earlier, later in (([10.0, 20.0], []), ([], [10.0])):
        model = Layers()
        averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
        mark(group, 1 + 2 * len(after))
        for number in earlier:
            with averager.no_sync():
                model(number * (rank + 1)).backward()
        mark(group, 2 + 2 * len(after))
        inside = gradients_of(model)
        model(1.0 * (rank + 1)).backward()
        for number in later:
            with averager.no_sync():
                model(number * (rank + 1)).backward()
        averager.finish()
        after.append([inside, gradients_of(model)])
    return after


@exercise("phase2/BucketedGradientAverager", points=1)
def test_backward_under_no_sync_only_accumulates(ranks):
    """Passes with 10 and 20 under no_sync() send nothing and add up; then 1 is added and sent."""
    seen = ranks(probe_no_sync, world_size=2, cap=SMALL)

    calls = between(seen, 0, (1, 2))
    check(
        not calls,
        "synchronised-too-often",
        f"Backward under no_sync() calls {listed(c.op for c in calls)}. It must only accumulate.",
        guide=GUIDE,
    )
    before, _ = case_by_case(seen, 2)
    held = [added(own(10 * n), own(20 * n)) for n in (1, 2)]
    inside = [value[0] for value in before]
    check(
        inside == held,
        "accumulation-lost",
        f"After passes with 10 and 20 under no_sync() the gradients should be {held} by rank, but "
        f"they are {inside}. Under no_sync(), backward must only accumulate.",
        guide=GUIDE,
    )
    assert_sums(ranks, each(before, lambda value: value[1]), held, [own(1), own(2)])


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_second_backward_before_finish(ranks):
    """A pass with 10 under no_sync() after one with 1 is included in the mean."""
    seen = ranks(probe_no_sync, world_size=2, cap=SMALL)

    _, after = case_by_case(seen, 2)
    held, sent = [own(10), own(20)], [own(1), own(2)]
    both = [added(*passes) for passes in zip(held, sent, strict=True)]
    assert_sums(ranks, each(after, lambda value: value[1]), held, sent, [overwritten(both)])


def assert_sums(ranks, seen, held, sent, departures=()):
    """Compare with the means of the gradients held under no_sync() and those that were sent."""
    both = [added(*passes) for passes in zip(held, sent, strict=True)]
    assert_means(ranks, seen, both, lost_or_local(held, sent), departures)


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_rank_without_backward_takes_part_in_finish(ranks):
    """Rank 1 calls only finish(), then a backward under no_sync() and finish(): it has 0, then 2.

    Rank 0 has the number 6 in both steps.
    """

    def probe(rank, trainer, cap):
        model = Layers()
        averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
        after = []
        for step in (0, 1):
            model.zero_grad()
            if rank == 0:
                model(6.0).backward()
            elif step == 1:
                with averager.no_sync():
                    model(2.0).backward()
            averager.finish()
            after.append(gradients_of(model))
        return after

    seen = ranks(probe, world_size=2, cap=SMALL, mistakes=[idle_rank])

    none = {f"layer {layer}": 0.0 for layer in ALL}
    for of_step, grads in zip(case_by_case(seen, 2), (none, own(2)), strict=True):
        assert_means(ranks, of_step, [own(6), grads])


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_small_model_is_one_bucket(ranks):
    """By default the cap is 25 MiB, so four layers of 400 to 700 floats are sent together."""
    seen = ranks(probe_buckets, world_size=2, cases=[(SIZES, None, "float32")], steps=1)

    raise_mistake(not_one_bucket(seen, SIZES, seen[0]))


CAPPED = [  # sizes, the cap in elements, dtype
    (SIZES, 750, "float32"),
    (SIZES, 1350, "float32"),
    ([400, 2000, 350, 250, 750, 600], 1350, "float32"),
    ([400, 2000, 300, 200], 1350, "float64"),
]


@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_bucket_is_filled_up_to_the_cap(ranks):
    """A cap of 750 floats makes buckets of 700, 600, 500 and 400, one of 1350 of 1300 and 900.

    Layers of 750 and 600 floats fill a bucket of 1350 exactly, and one of 2000 has its own bucket.
    With float64, the elements count twice as many bytes.
    """
    cases = [(sizes, cap * np.dtype(name).itemsize / MIB, name) for sizes, cap, name in CAPPED]

    seen = ranks(probe_buckets, world_size=2, cases=cases, steps=2)

    for case, (sizes, cap, name) in enumerate(CAPPED):
        for step in (0, 1):
            raise_mistake(packed_wrongly(seen, stretch_of(case, step, 2), sizes, cap, name))


def check_overlap(ranks, moments):
    options = {"sizes": SIZES, "cap": SMALL, "moments": moments}
    seen = ranks(probe_overlap, world_size=2, mistakes=[waits_in_backward], **options)

    raise_mistake(nothing_sent_early(seen, SIZES, moments))


@exercise("phase2/BucketedGradientAverager", points=1)
def test_buckets_are_sent_while_backward_goes_on(ranks):
    """When three of four layers have their gradients, a bucket is sent, and backward goes on."""
    check_overlap(ranks, ["second"])


@exercise("phase2/BucketedGradientAverager", points=1)
def test_earlier_passes_do_not_delay_the_buckets(ranks):
    """Buckets are sent early after an unused layer, and after a no_sync() block that raised."""
    check_overlap(ranks, ["interrupted", "unused"])
