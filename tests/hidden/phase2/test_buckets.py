"""Gradients in buckets: the means that they become, whatever a model does with its parameters."""

import time
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn

from gradsync.diagnose.buckets import (
    averaging_mistakes,
    between,
    bucket_sizes,
    in_objects,
    lost_or_local,
    mean_of,
    only_these_wrong,
    unlike_buckets,
    with_guide,
)
from gradsync.diagnose.gradients import not_synchronised
from gradsync.diagnose.rounding import OF_FLOAT64
from gradsync.diagnose.values import ROUNDINGS, close
from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    check,
    each,
    exercise,
    hold,
)

GUIDE = "Buckets and overlap"
SMALL = 1e-4  # MiB, 104 bytes: two or three of the parameters below
ALL = (0, 1, 2)


class Net(nn.Module):
    """Branches that a pass takes in any order, or leaves out, and a head; of float64."""

    def __init__(self, extra=""):
        super().__init__()
        torch.manual_seed(5)
        wide = [nn.Sequential(nn.Linear(4, k), nn.Tanh(), nn.Linear(k, 4)) for k in (2, 3, 5)]
        self.branches = nn.ModuleList(wide)
        self.more = nn.Sequential()
        if extra == "tied":
            self.more = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())
            self.more[2].weight = self.more[0].weight
        if extra == "spare":
            self.spare = nn.Linear(3, 3)
            self.more.append(nn.Linear(4, 4).requires_grad_(False))
        self.head = nn.Linear(4, 2)
        self.double()
        if extra == "mixed":
            self.branches[1].float()

    def forward(self, inputs, order):
        hidden = inputs
        for number in order:
            branch = self.branches[number]
            hidden = hidden + branch(hidden.to(branch[0].weight.dtype)).double()
        return self.head(self.more(hidden))


def draw(rng, steps, world_size):
    """Return inputs (step, pass, rank, sample, 4), of three passes a step at most."""
    return rng.standard_normal((steps, 3, world_size, 3, 4))


def backward(model, inputs, order=ALL):
    model(torch.from_numpy(inputs), order).square().sum().backward()


def gradients_of(model):
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def probe_steps(rank, world_size, trainer, inputs, plan, cap=SMALL, orders=(ALL,) * 4, extra=""):
    """Return this rank's gradients after each step of the plan; `orders` has its branches.

    A step is a word of passes, "n" a backward under no_sync, "s" one that sends, and `finish()`.
    """
    model = Net(extra)
    if extra == "spare":
        model.more[0].weight.grad = torch.full((4, 4), rank + 1.0).double()
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
    after = []
    if rank == world_size - 1:
        time.sleep(0.05)  # the others' buckets can't be complete when they call finish()
    for step, passes in enumerate(plan):
        for number, kind in enumerate(passes):
            with averager.no_sync() if kind == "n" else nullcontext():
                backward(model, inputs[step][number][rank], orders[rank])
        averager.finish()
        after.append(gradients_of(model))
        for param in model.parameters():  # as optimizers do it, and as they did it before
            if param.requires_grad and param.grad is not None:
                param.grad = None if step % 2 else param.grad.detach().zero_()
    return after


def zero_for_none(grad, like):
    return torch.zeros_like(like) if grad is None else grad


def own_gradients(inputs, passes, orders=(ALL,) * 4, extra=""):
    """Return, by rank, the gradients that it makes alone in these passes of a step."""
    found = []
    for rank in range(inputs.shape[1]):
        model = Net(extra)
        for number in passes:
            backward(model, inputs[number][rank], orders[rank])
        trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
        found.append({n: zero_for_none(p.grad, p.detach()) for n, p in trainable.items()})
    return found


def hold_means(seen, inputs, plan, mistakes=(), roundings=ROUNDINGS, **options):
    """Hold the gradients after each step against the mean of what the ranks make alone."""
    for step, passes in enumerate(plan):
        local = own_gradients(inputs[step], range(len(passes)), **options)
        assert_on_every_rank(
            each(seen, lambda value, step=step, local=local: {n: value[step][n] for n in local[0]}),
            mean_of(local),
            mistakes=[*mistakes, *averaging_mistakes(local)],
            otherwise=f"after finish() of step {step + 1} the gradients are not the mean over the "
            f"ranks (GUIDELINES, {GUIDE})",
            roundings=roundings,
        )


@pytest.mark.parametrize(("world_size", "cap"), [(4, SMALL), (3, 25.0), (2, SMALL), (1, SMALL)])
@exercise("phase2/BucketedGradientAverager", points=2)
def test_every_rank_ends_with_the_mean(ranks, rng, world_size, cap):
    """After finish() every gradient is the mean over ranks, in many buckets and in one."""
    inputs = draw(rng, 1, world_size)

    seen = ranks(probe_steps, world_size, inputs=by_rank(inputs, 2), plan=["s"], cap=cap)

    hold_means(seen, inputs, ["s"])
    if world_size == 1:
        hold_that_it_averages(ranks, rng)


def hold_that_it_averages(ranks, rng):
    """Hold two ranks' gradients to meet: on one rank an averager that does nothing is right."""
    inputs = draw(rng, 1, 2)
    seen = ranks(probe_steps, 2, inputs=by_rank(inputs, 2), plan=["s"])
    local = own_gradients(inputs[0], [0])
    kept = with_guide(not_synchronised(local), GUIDE)
    hold(kept(each(seen, lambda value: value[0]), local))


@exercise("phase2/BucketedGradientAverager", points=1)
def test_several_steps_in_a_row(ranks, rng):
    """Each of four steps averages gradients of float64, whether they began as None or as zeros."""
    inputs = draw(rng, 4, 2)

    seen = ranks(probe_steps, 2, inputs=by_rank(inputs, 2), plan=["s"] * 4)

    hold_means(seen, inputs, ["s"] * 4, roundings=OF_FLOAT64)


UNUSED = {"on rank 1": [ALL, (0, 2), ALL], "on ranks 1 and 2": [ALL, (0,), (2, 0)]}


@pytest.mark.parametrize("unused", UNUSED)
@exercise("phase2/BucketedGradientAverager", points=2)
def test_what_a_rank_does_not_use_counts_as_zero(ranks, rng, unused):
    """Ranks may leave out parameters in a pass, or use them in another order."""
    inputs, plan, orders = draw(rng, 2, 3), ["s", "s"], UNUSED[unused]

    seen = ranks(
        probe_steps,
        3,
        inputs=by_rank(inputs, 2),
        plan=plan,
        orders=orders,
        mistakes=[unlike_buckets],
    )

    lacking = {number for order in orders for number in ALL if number not in order}
    text = f"these were not used {unused}. They count as zero there, and every rank needs the mean"
    names = [f"branches.{number}." for number in lacking]
    zeros = only_these_wrong(names, "none-gradient-skipped", text)
    hold_means(seen, inputs, plan, mistakes=[zeros], orders=orders)


@exercise("phase2/BucketedGradientAverager", points=1)
def test_frozen_parameters_are_left_alone(ranks, rng):
    """A frozen parameter keeps what it has in `grad`, and one that nobody uses harms nothing."""
    inputs = draw(rng, 1, 2)

    seen = ranks(probe_steps, 2, inputs=by_rank(inputs, 2), plan=["s"], extra="spare")

    names = ("more.0.weight", "more.0.bias")
    frozen = [[value[0][name] for name in names] for value in seen]
    wrong = [r for r in range(2) if not close(frozen[r], [torch.full((4, 4), r + 1.0), None])]
    check(
        not wrong,
        "frozen-touched",
        f"finish() changed a frozen parameter's `grad`: these are left alone (GUIDELINES, {GUIDE})",
        ranks=wrong,
        guide=GUIDE,
    )
    local = own_gradients(inputs[0], [0], extra="spare")

    assert_on_every_rank(
        each(seen, lambda value: {n: zero_for_none(value[0][n], p) for n, p in local[0].items()}),
        mean_of(local),
        mistakes=averaging_mistakes(local),
    )


@exercise("phase2/BucketedGradientAverager", points=0.5)
def test_tied_parameters_are_averaged_once(ranks, rng):
    """A weight that two layers share is one parameter, with one gradient."""
    inputs, plan = draw(rng, 1, 3), ["s"]

    seen = ranks(probe_steps, 3, inputs=by_rank(inputs, 2), plan=plan, cap=25.0, extra="tied")

    once = "a weight of two layers is one parameter, and takes part once"
    tied = only_these_wrong(["more.0.weight"], "tied-parameters-wrong", once)
    hold_means(seen, inputs, plan, mistakes=[tied], extra="tied")
    elements = sum(p.numel() for p in Net("tied").parameters())
    sent = sum(bucket_sizes(seen.collectives(0)))
    check(
        in_objects(seen) or not elements + 16 <= sent < 1.5 * elements,
        "tied-parameters-wrong",
        f"{elements} parameters, and every rank sends {sent}: {once} (GUIDELINES, {GUIDE})",
        ranks=range(3),
        guide=GUIDE,
    )


@exercise("phase2/BucketedGradientAverager", points=1)
def test_parameters_of_two_dtypes(ranks, rng):
    """Parameters of float64 stand between such of float32: a bucket takes one or the other."""
    inputs = draw(rng, 1, 2)

    seen = ranks(probe_steps, 2, inputs=by_rank(inputs, 2), plan=["s"], cap=25.0, extra="mixed")

    hold_means(seen, inputs, ["s"], extra="mixed")


def mark(group, number):  # see gradsync.diagnose.buckets
    dist.all_reduce(torch.zeros(1, 1, number, dtype=torch.int8), group=group)


def probe_no_sync(rank, trainer, inputs):
    """Return this rank's gradients after two passes under no_sync, and after a third one."""
    group = dist.new_group()
    model = Net()
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=SMALL)
    mark(group, 1)
    with averager.no_sync():
        backward(model, inputs[0][0][rank])
        backward(model, inputs[0][1][rank])
    mark(group, 2)
    inside = gradients_of(model)
    backward(model, inputs[0][2][rank])
    averager.finish()
    return [inside, gradients_of(model)]


@exercise("phase2/BucketedGradientAverager", points=1.5)
def test_no_sync_accumulates_and_sends_nothing(ranks, rng):
    """Backward under no_sync enters no collective; the next one averages all that has come."""
    inputs = draw(rng, 1, 2)

    seen = ranks(probe_no_sync, 2, inputs=by_rank(inputs, 2))

    calls = [between(seen, rank, (1, 2)) for rank in range(2)]
    check(
        not any(calls),
        "synchronised-too-often",
        f"two backward passes under no_sync() enter {len(calls[0])} collectives on rank 0 and "
        f"{len(calls[1])} on rank 1: it only accumulates, and sends nothing (GUIDELINES, {GUIDE})",
        ranks=[rank for rank in range(2) if calls[rank]],
        guide=GUIDE,
    )
    inside = own_gradients(inputs[0], [0, 1])
    wrong = [rank for rank in range(2) if not close(seen[rank][0], inside[rank])]
    check(
        not wrong,
        "accumulation-lost",
        "two backward passes under no_sync() do not leave a rank with the sum of its own gradients "
        f"of both: it only accumulates (GUIDELINES, {GUIDE})",
        ranks=wrong,
        guide=GUIDE,
    )
    hold_sums_of_passes(each(seen, lambda value: value[1]), inputs[0], early=[0, 1], late=[2])


@pytest.mark.parametrize("branch", ["used by all", "unused on rank 1"])
@exercise("phase2/BucketedGradientAverager", points=1)
def test_a_second_backward_before_finish(ranks, rng, branch):
    """What a backward under no_sync adds after another that has sent is averaged as well."""
    inputs, orders = draw(rng, 1, 3), [ALL, ALL if branch == "used by all" else (0, 2), ALL]

    seen = ranks(
        probe_steps,
        3,
        inputs=by_rank(inputs, 2),
        plan=["sn"],
        orders=orders,
        mistakes=[unlike_buckets],
    )

    hold_sums_of_passes(
        each(seen, lambda value: value[0]), inputs[0], early=[1], late=[0], orders=orders
    )


def hold_sums_of_passes(seen, inputs, early, late, **options):
    """Hold gradients against the means of all passes, those under no_sync and those that send."""
    held, sent = (own_gradients(inputs, passes, **options) for passes in (early, late))
    both = own_gradients(inputs, [*early, *late], **options)
    assert_on_every_rank(
        seen,
        mean_of(both),
        mistakes=[*lost_or_local(held, sent), *averaging_mistakes(both)],
        otherwise="after passes under no_sync() and one outside, finish() does not leave the mean "
        f"over ranks of the sum over passes (GUIDELINES, {GUIDE})",
    )
