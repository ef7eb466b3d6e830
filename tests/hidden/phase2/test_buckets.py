"""Gradients averaged in buckets: their values, for several ways to use a model's parameters."""

import time

import pytest
import torch

from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    case_by_case,
    check,
    each,
    exercise,
    raise_mistake,
    seen_of,
)
from gradsync.testing.values import ROUNDINGS, close
from gradsync.text import listed
from support.probes.buckets import (
    ALL,
    SMALL,
    Net,
    backward,
    draw,
    gradients_of,
    own_gradients,
    zero_for_none,
)
from support.probes.models import placed
from support.probes.names import PARTS, first_numbers, model_named, name_sets
from support.rules.bucket_timing import left_too_early
from support.rules.buckets import (
    averaged_elements,
    averaging_mistakes,
    in_objects,
    left_in_bucket,
    only_these_wrong,
    some_undivided,
    unlike_buckets,
)
from support.rules.gradients import mean_of
from support.rules.names import mixed_means, order_depends_on_names
from support.rules.rounding import OF_FLOAT64

GUIDE = "Buckets and overlap"
TWO_PARTS = 24 / 2**20  # MiB: the bytes of two parameters whose names differ by rank
OFTEN = 1.25  # times the model's elements: flags stay below, a tied weight sent twice is above
BRANCHES = 5e-4  # MiB, 65 numbers of float64: branches.1 and branches.0 share a bucket


def probe_steps(
    rank,
    world_size,
    trainer,
    inputs,
    cap=SMALL,
    orders=(ALL,) * 4,
    extra="",
    idle=None,
    whole=(),
):
    """Return this rank's gradients after a step on each of the inputs, with its own branches.

    In the steps `whole` it uses all branches. In the last step the rank `idle` runs no backward,
    and only calls finish(). A set of the parameters has the same order on all ranks.
    """
    model = placed(Net(extra), 0)
    if extra == "spare":
        model.more[0].weight.grad = torch.full((4, 4), rank + 1.0).double()
    averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=cap)
    after = []
    if rank == world_size - 1:
        time.sleep(0.05)  # the others' buckets can't be complete when they call finish()
    for step, given in enumerate(inputs):
        if rank != idle or step < len(inputs) - 1:
            backward(model, given[rank], ALL if step in whole else orders[rank])
        averager.finish()
        after.append(gradients_of(model))
        for param in model.parameters():  # as zero_grad does, with and without set_to_none
            if param.requires_grad and param.grad is not None:
                param.grad = None if step % 2 else param.grad.detach().zero_()
    return after


def zeros_of(grads):
    return {name: torch.zeros_like(grad) for name, grad in grads.items()}


def check_means(seen, inputs, mistakes=(), roundings=ROUNDINGS, idle=None, dtype=None, **options):
    """Compare the gradients after each step, of all dtypes or of one, with the ranks' mean."""
    before = None
    for step in range(len(inputs)):
        local = own_gradients(inputs[step : step + 1], **options)
        local = [{n: g for n, g in own.items() if dtype in (None, g.dtype)} for own in local]
        if idle is not None and step == len(inputs) - 1:
            local[idle] = zeros_of(local[idle])
        mean = mean_of(local)
        elements = len(inputs) * sum(grad.numel() for grad in local[0].values())
        zeros = [zeros_of(own) for own in local]
        early = left_too_early(zeros, "only-some-parameters", local, elements)
        known = averaging_mistakes(local, departures=[early], steps=len(inputs))
        assert_on_every_rank(
            each(seen, lambda value, step=step, local=local: {n: value[step][n] for n in local[0]}),
            mean,
            mistakes=[some_undivided, *left_in_bucket(local, before), *mistakes, *known],
            otherwise=f"after finish() in step {step + 1}, the gradients are not the mean over the "
            "ranks",
            roundings=roundings,
        )
        before = mean


@pytest.mark.parametrize("caps", [{4: SMALL}, {2: 25.0, 1: SMALL}], ids=["4", "2 and 1"])
@exercise("phase2/BucketedGradientAverager", points=2)
def test_every_rank_ends_with_the_mean(ranks, rng, caps):
    """After finish(), every gradient is the mean over the ranks, with many buckets or one."""
    for world_size, cap in caps.items():  # on a single rank, doing nothing is correct
        inputs = draw(rng, 1, world_size)
        check_means(ranks(probe_steps, world_size, inputs=by_rank(inputs, 1), cap=cap), inputs)
        if world_size > 1:
            check_in_one_order(ranks, rng, world_size)


def check_in_one_order(ranks, rng, world_size):
    """Check that all ranks use the model's order, although the names differ between ranks."""

    def probe(rank, trainer, names):
        model = model_named(names[rank], rank)
        averager = trainer.BucketedGradientAverager(model, bucket_cap_mb=TWO_PARTS)
        model(torch.tensor(10.0 * rank)).backward()
        averager.finish()
        return first_numbers([param.grad for param in model.parameters()])

    names = name_sets(world_size, int(rng.integers(900_000)))
    means = [5.0 * (world_size - 1) + k for k in range(PARTS)]
    seen = seen_of(lambda: ranks(probe, world_size, names=names))
    possible = mixed_means([[k + 10.0 * rank for k in range(PARTS)] for rank in range(world_size)])
    raise_mistake(order_depends_on_names(seen, means, possible, "averaged", GUIDE))


@exercise("phase2/BucketedGradientAverager", points=0.5)
def test_several_steps_in_a_row(ranks, rng):
    """Three steps in a row average float64 gradients that start as None or as zeros."""
    inputs = draw(rng, 3, 2)

    seen = ranks(probe_steps, 2, inputs=by_rank(inputs, 1))

    check_means(seen, inputs, roundings=OF_FLOAT64)


UNUSED = {"rank 1": [ALL, (0, 2), ALL], "ranks 1 and 2": [ALL, (0,), (2, 0)]}


def probe_unused(rank, world_size, trainer, inputs, cases):
    """Return the result of `probe_steps` for each case of orders and its inputs."""
    return [
        probe_steps(rank, world_size, trainer, given, orders=orders, idle=2)
        for given, orders in zip(inputs, cases, strict=True)
    ]


@exercise("phase2/BucketedGradientAverager", points=2)
def test_parameters_that_a_rank_does_not_use_count_as_zero(ranks, rng):
    """A gradient counts as zero on ranks that do not use its parameter; their order may differ."""
    inputs = [draw(rng, 2, 3), draw(rng, 3, 3)]  # the idle rank's gradients are zeros, then None
    given = {"inputs": by_rank(inputs, 2), "cases": list(UNUSED.values())}

    seen = ranks(probe_unused, 3, **given, mistakes=[unlike_buckets])

    by_case = case_by_case(seen, len(UNUSED))
    for case, (unused, orders) in enumerate(UNUSED.items()):
        lacking = {number for order in orders for number in ALL if number not in order}
        names = [f"branches.{number}." for number in lacking]
        zeros = only_these_wrong(names, "none-gradient-skipped", count_as_zero(unused))
        check_means(by_case[case], inputs[case], mistakes=[zeros], orders=orders, idle=2)


def count_as_zero(unused):
    return (
        f"{unused.capitalize()} did not use these parameters, so the gradients there count as "
        "zero. Write the mean into `grad` on every rank, even where it was None."
    )


@exercise("phase2/BucketedGradientAverager", points=0.5)
def test_a_pass_with_unused_parameters_does_not_affect_the_next_pass(ranks, rng):
    """If rank 1 does not use some parameters in a pass, the next pass with all is still correct."""
    inputs, partly = draw(rng, 2, 2), [ALL, (0, 2)]

    seen = ranks(probe_steps, 2, inputs=by_rank(inputs, 1), cap=BRANCHES, orders=partly, whole=(1,))

    first = each(seen, lambda value: value[:1])
    zeros = only_these_wrong(["branches.1."], "none-gradient-skipped", count_as_zero("rank 1"))
    check_means(first, inputs[:1], mistakes=[zeros], orders=partly)
    mean = mean_of(own_gradients(inputs[1:]))
    after = each(seen, lambda value: value[1])
    wrong = [name for name in mean if not all(close(own[name], mean[name]) for own in after)]
    check(
        not 0 < len(wrong) < len(mean),
        "only-some-parameters",
        "The gradients were correct in a pass where rank 1 did not use branches.1. In the next "
        f"pass all ranks used all branches, but the gradients of {listed(wrong)} are "
        "not the mean over the ranks. Start counting a bucket's gradients from zero in each pass.",
        ranks=range(2),
        guide=GUIDE,
    )
    check_means(each(seen, lambda value: value[1:]), inputs[1:])


@exercise("phase2/BucketedGradientAverager", points=1)
def test_frozen_parameters_are_left_alone(ranks, rng):
    """A frozen parameter's `grad` does not change, and a parameter that no rank uses is allowed."""
    inputs = draw(rng, 1, 2)

    seen = ranks(probe_steps, 2, inputs=by_rank(inputs, 1), extra="spare")

    names = ("more.0.weight", "more.0.bias")
    frozen = [[value[0][name] for name in names] for value in seen]
    wrong = [r for r in range(2) if not close(frozen[r], [torch.full((4, 4), r + 1.0), None])]
    check(
        not wrong,
        "frozen-touched",
        "finish() changed the `grad` of a frozen parameter. Use only parameters that require "
        "gradients.",
        ranks=wrong,
        guide=GUIDE,
    )
    local = own_gradients(inputs, extra="spare")

    assert_on_every_rank(
        each(seen, lambda value: {n: zero_for_none(value[0][n], p) for n, p in local[0].items()}),
        mean_of(local),
        mistakes=averaging_mistakes(local),
        otherwise="after finish(), in a model with frozen parameters, the other gradients are not "
        "the mean over the ranks",
    )


@exercise("phase2/BucketedGradientAverager", points=0.5)
def test_tied_parameters_are_averaged_once(ranks, rng):
    """The gradient of a weight that two layers share is averaged once."""
    inputs = draw(rng, 1, 3)

    seen = ranks(probe_steps, 3, inputs=by_rank(inputs, 1), cap=25.0, extra="tied")

    once = "A weight that two layers share is one parameter: average it once."
    tied = only_these_wrong(["more.2.weight"], "tied-parameters-wrong", once)
    check_means(seen, inputs, mistakes=[tied], extra="tied")
    sent = how_often_sent(seen, "tied")
    if in_objects(seen) or sent < OFTEN:
        return
    untied = how_often_sent(ranks(probe_steps, 3, inputs=by_rank(inputs, 1), cap=25.0))
    check(
        sent < OFTEN * untied,
        "tied-parameters-wrong",
        f"In one pass, the ranks average {sent:.2g} times the model's elements if two layers share "
        f"a weight, and {untied:.2g} times if none do. {once}",
        ranks=range(3),
        guide=GUIDE,
    )


def how_often_sent(seen, extra=""):
    """Return how many elements the ranks averaged, divided by the model's number of elements."""
    return averaged_elements(seen) / sum(p.numel() for p in Net(extra).parameters())


@exercise("phase2/BucketedGradientAverager", points=1)
def test_parameters_of_two_dtypes(ranks, rng):
    """In a model with float32 and float64, each gradient is averaged in its own dtype."""
    inputs = draw(rng, 1, 2)

    seen = ranks(probe_steps, 2, inputs=by_rank(inputs, 1), cap=25.0, extra="mixed")

    check_means(seen, inputs, extra="mixed")
    check_means(seen, inputs, extra="mixed", dtype=torch.float64, roundings=OF_FLOAT64)
