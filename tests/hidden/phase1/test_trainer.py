"""One model on N ranks: broadcasting it, and averaging its gradients."""

import numpy as np
import pytest
import torch
from torch import nn

from gradsync.testing import (
    EXACT,
    assert_on_every_rank,
    assert_rank_by_rank,
    by_rank,
    check,
    check_no_deadlock,
    each,
    exercise,
    raise_mistake,
    seen_of,
)
from gradsync.text import counted, listed
from support.probes.memory import spoil_new_memory
from support.probes.models import BUFFERS, motley_model, placed, tensors_of
from support.probes.names import PARTS, first_numbers, model_named, name_sets
from support.probes.seeding import seed_weights
from support.rules.absent_gradients import frozen_mistakes, none_gradient_skipped
from support.rules.broadcast import bits_differ, broadcast_mistakes, weight_not_sent
from support.rules.gradients import (
    AS_FLOAT64,
    all_zero,
    always_divided_by,
    digits_lost,
    gradient_mistakes,
    mean_of,
    not_synchronised,
    only_some_parameters,
)
from support.rules.names import order_depends_on_names
from support.rules.waiting import nobody_waited, skipped_because_of_nan

MODEL, GRADIENTS = "Model synchronisation", "Gradient aggregation"
NOT_THE_MEAN = "the gradients on {} are not the mean over the ranks"


@pytest.mark.parametrize(("world_size", "src"), [(3, 0), (2, 1)])
@exercise("phase1/broadcast_model", points=6)
def test_every_rank_ends_with_the_source_model(ranks, rng, world_size, src):
    """After a broadcast, every parameter and buffer equals rank src's, bit for bit."""
    seeds = [int(s) for s in rng.choice(1000, world_size, replace=False)]

    def probe(rank, trainer, seeds, src):
        model = motley_model(seeds[rank], rank, spoilt=rank != src)
        trainer.broadcast_model(model, src=src)
        return tensors_of(model)

    seen = ranks(probe, world_size, seeds=by_rank(seeds), src=src)

    raise_mistake(nobody_waited(seen, MODEL))
    before = [tensors_of(motley_model(s, spoilt=r != src)) for r, s in enumerate(seeds)]
    assert_on_every_rank(
        seen,
        before[src],
        mistakes=broadcast_mistakes(before, src, BUFFERS),
        roundings=EXACT,
    )
    raise_mistake(bits_differ(seen, [before[src]] * world_size))

    def probe_names(rank, trainer, names):
        model = model_named(names[rank], rank, 10.0 * rank, buffers=True)
        trainer.broadcast_model(model)
        return first_numbers([*model.parameters(), *model.buffers()])

    numbers = [float(first + k) for first in (0, 100) for k in range(PARTS)]
    names = name_sets(world_size, int(rng.integers(900_000)))
    again = seen_of(lambda: ranks(probe_names, world_size, names=names))
    raise_mistake(order_depends_on_names(again, numbers, "replaced", MODEL))


@exercise("phase1/broadcast_model", points=2.5)
def test_parameters_and_buffers_stay_the_same_objects(ranks):
    """After a broadcast, the tensors are the same objects, so an optimizer still trains them."""

    def probe(rank, trainer):
        model = motley_model(rank, rank)
        before = [*model.parameters(), *model.buffers()]
        trainer.broadcast_model(model)
        after = [*model.parameters(), *model.buffers()]
        same = [a is b for a, b in zip(before, after, strict=True)]
        return {"same": same, "weight": model[0].weight.detach()}

    seen = ranks(probe, 2)

    check_sent(seen)
    model = motley_model(0)
    kept = [True] * len([*model.parameters(), *model.buffers()])
    replaced = [rank for rank in range(2) if seen[rank]["same"] != kept]
    check(
        not replaced,
        "tensors-replaced",
        "After broadcast_model, the model has new parameter or buffer objects. An "
        "optimizer created earlier would train the old ones. Change the tensors in place.",
        ranks=replaced,
        guide=MODEL,
    )


@exercise("phase1/broadcast_model", points=1.5)
def test_gradients_and_frozen_flags_are_not_changed(ranks):
    """A broadcast does not change `grad` or `requires_grad` of any parameter."""

    def probe(rank, trainer):
        model = motley_model(rank, rank)
        for param in (model[0].weight, model[3].bias):  # the second one is frozen
            param.grad = torch.full_like(param, rank + 1.0)
        before = [p.requires_grad for p in model.parameters()]
        trainer.broadcast_model(model)
        kept = [p.requires_grad for p in model.parameters()] == before
        grads = [p.grad for p in (model[0].weight, model[3].bias)]
        mine = all(grad is not None and bool((grad == rank + 1).all()) for grad in grads)
        none = sum(p.grad is not None for p in model.parameters()) <= len(grads)
        return {"kept": kept, "mine": mine, "none": none, "weight": model[0].weight.detach()}

    seen = ranks(probe, 2)

    check_sent(seen)
    unfrozen = [rank for rank in range(2) if not seen[rank]["kept"]]
    check(
        not unfrozen,
        "frozen-touched",
        "After broadcast_model, a different set of parameters is trainable. Leave `requires_grad` "
        "as it was before the call.",
        ranks=unfrozen,
        guide=MODEL,
    )
    changed = [rank for rank in range(2) if not (seen[rank]["mine"] and seen[rank]["none"])]
    check(
        not changed,
        "gradients-touched",
        "broadcast_model changes `grad` of some parameters. Each rank has its own gradients: leave "
        "them as they are.",
        ranks=changed,
        guide=MODEL,
    )


def check_sent(seen):
    """Check that rank 0's model was sent, by the first layer's `weight`."""
    raise_mistake(nobody_waited(seen, MODEL))
    raise_mistake(weight_not_sent(seen, [motley_model(seed)[0].weight for seed in range(2)]))


def average(ranks, rng, world_size):
    """Make the ranks average drawn gradients; return the results and the drawn gradients."""
    grads = 4 * rng.standard_normal((world_size, 3, 2), dtype=np.float32)  # (rank, out, in)
    biases = 4 * rng.standard_normal((world_size, 3), dtype=np.float32)  # (rank, out)
    local = [{"weight": w, "bias": b} for w, b in zip(grads, biases, strict=True)]

    def probe(rank, trainer, local):
        seed_weights(2)
        model = placed(nn.Linear(2, 3), rank)
        for name, param in model.named_parameters():
            param.grad = torch.from_numpy(local[rank][name])
        trainer.average_gradients(model)
        return {name: param.grad for name, param in model.named_parameters()}

    seen = ranks(probe, world_size, local=by_rank(local))
    raise_mistake(nobody_waited(seen, GRADIENTS))
    return seen, local


def with_zeros(gradients):
    """Replace a missing gradient of the bias by zeros."""
    return {name: np.zeros(3) if g is None else g for name, g in gradients.items()}


def check_synchronised(seen, local):
    """Check that the ranks do not end with their own gradients, unchanged, or with zeros."""
    raise_mistake(not_synchronised(local)(seen, local))
    raise_mistake(all_zero(seen, local))


@pytest.mark.parametrize("world_size", [4, 3, 2, 1])
@exercise("phase1/average_gradients", points=6)
def test_every_rank_ends_with_the_mean(ranks, rng, world_size):
    """Different gradients on each rank become their mean on every rank."""
    seen, local = average(ranks, rng, world_size)

    assert_on_every_rank(
        seen,
        mean_of(local),
        mistakes=[
            always_divided_by(world_size, lambda: average(ranks, rng, world_size % 3 + 2)),
            *gradient_mistakes(local),
        ],
        otherwise=NOT_THE_MEAN.format(counted(world_size, "rank")),
    )
    if world_size == 1:  # a function that does nothing is also correct here
        check_synchronised(*average(ranks, rng, 2))
        return

    def probe(rank, trainer, names):
        model = model_named(names[rank], rank)
        for param in model.parameters():
            param.grad = param.detach() + 10.0 * rank
        trainer.average_gradients(model)
        return first_numbers([param.grad for param in model.parameters()])

    means = [5.0 * (world_size - 1) + k for k in range(PARTS)]
    names = name_sets(world_size, int(rng.integers(900_000)))
    again = seen_of(lambda: ranks(probe, world_size, names=names))
    raise_mistake(order_depends_on_names(again, means, "averaged", GRADIENTS))


@exercise("phase1/average_gradients", points=1)
def test_every_parameter_keeps_its_own_dtype(ranks, rng):
    """Parameters of several dtypes and sizes are averaged, each in its own dtype."""
    wide = rng.standard_normal((2, 1000))  # (rank, element)
    narrow = rng.standard_normal((2, 7), dtype=np.float32)
    single = rng.standard_normal(2, dtype=np.float32)  # for a parameter without dimensions
    grads = {"wide": wide, "narrow": narrow, "single": single}
    local = [{name: np.array(grad[rank]) for name, grad in grads.items()} for rank in range(2)]

    def probe(rank, trainer, local):
        model = nn.Module()
        for name, grad in local[rank].items():
            model.register_parameter(name, nn.Parameter(torch.zeros_like(torch.from_numpy(grad))))
            getattr(model, name).grad = torch.from_numpy(grad)
        placed(model, rank)
        trainer.average_gradients(model)
        grads = {name: param.grad for name, param in model.named_parameters()}
        return [grads, {name: str(grad.dtype) for name, grad in grads.items()}]

    seen = ranks(probe, 2, local=by_rank(local))

    raise_mistake(nobody_waited(seen, GRADIENTS))
    dtypes = {name: f"torch.{grad.dtype}" for name, grad in grads.items()}
    assert_on_every_rank(
        each(seen, lambda value: value[0]),
        mean_of(local),
        mistakes=gradient_mistakes(local),
        otherwise=NOT_THE_MEAN.format("2 ranks, with parameters of float64 and of float32,"),
    )
    check(
        all(found == dtypes for _, found in seen),
        "shape-mismatch",
        "After averaging, the gradients of a model with float64 and float32 parameters have the "
        f"dtypes {listed(seen[0][1].values())}. Each gradient must keep its own dtype.",
        ranks=range(2),
        guide=GRADIENTS,
    )
    assert_on_every_rank(
        each(seen, lambda value: {"wide": value[0]["wide"]}),
        {"wide": wide.mean(0)},
        mistakes=[digits_lost],
        roundings=AS_FLOAT64,
    )


@exercise("phase1/average_gradients", points=3)
def test_a_missing_gradient_counts_as_zero(ranks, rng):
    """A gradient that some ranks do not have counts as zero there, and no rank blocks."""
    without = {1, 2}
    grads = rng.standard_normal((4, 3, 2))  # (rank, out, in)
    biases = rng.standard_normal((4, 3))  # (rank, out)
    biases[list(without)] = 0

    def probe(rank, trainer, grads, biases, without):
        spoil_new_memory()
        seed_weights(2)
        model = placed(nn.Linear(2, 3).double(), rank)
        model.weight.grad = torch.from_numpy(grads[rank])
        if rank not in without:
            model.bias.grad = torch.from_numpy(biases[rank])
        trainer.average_gradients(model)
        return {name: param.grad for name, param in model.named_parameters()}

    skipped = none_gradient_skipped(sorted(without), "bias")
    inputs = {"grads": by_rank(grads), "biases": by_rank(biases), "without": without}
    seen = ranks(probe, 4, mistakes=[skipped], **inputs)

    raise_mistake(nobody_waited(seen, GRADIENTS))
    local = [{"weight": w, "bias": b} for w, b in zip(grads, biases, strict=True)]
    check_synchronised(each(seen, with_zeros), local)
    assert_on_every_rank(
        seen,
        mean_of(local),
        mistakes=[skipped, *gradient_mistakes(local)],
        otherwise=NOT_THE_MEAN.format("4 ranks, two of which have no gradient of the bias,"),
    )
    for name, part in (("grads", grads), ("biases", biases)):
        inputs[name] = by_rank(np.stack([np.full_like(part[0], np.nan), part[1]]))
    apart = skipped_because_of_nan(0, "a gradient", GRADIENTS)
    check_no_deadlock(lambda: ranks(probe, 2, mistakes=[apart], **inputs))


@exercise("phase1/average_gradients", points=1.5)
def test_frozen_parameters_are_not_changed(ranks, rng):
    """The gradient of a frozen parameter stays as it is, and a missing one stays missing."""
    stale = rng.standard_normal((2, 3, 2))  # (rank, out, in)
    around = ("0.weight", "2.weight")  # a frozen layer
    fresh = [{name: rng.standard_normal((1, 3)) for name in around} for _ in range(2)]

    def probe(rank, trainer, stale, fresh):
        seed_weights(2)
        layers = [nn.Linear(3, 1), nn.Linear(2, 3), nn.Linear(3, 1)]
        model = placed(nn.Sequential(*layers).double(), rank)
        model[1].requires_grad_(False)
        model[1].weight.grad = torch.from_numpy(stale[rank])
        for name, grad in fresh[rank].items():
            model.get_parameter(name).grad = torch.from_numpy(grad)
        model[0].bias.grad = torch.ones(1).double()
        model[2].bias.grad = torch.ones(1).double()
        trainer.average_gradients(model)
        frozen = [model[1].weight.grad, model[1].bias.grad is None]
        trainable = {name: model.get_parameter(name).grad for name in fresh[rank]}
        return {"frozen": frozen, "trainable": trainable}

    seen = ranks(probe, 2, stale=by_rank(stale), fresh=by_rank(fresh))

    raise_mistake(nobody_waited(seen, GRADIENTS))
    trainable = each(seen, lambda value: value["trainable"])
    check_synchronised(trainable, fresh)
    raise_mistake(only_some_parameters(trainable, [mean_of(fresh)] * 2))
    assert_rank_by_rank(
        each(seen, lambda value: value["frozen"]),
        [[stale[rank], True] for rank in range(2)],
        mistakes=frozen_mistakes(stale),
        otherwise="the gradient of a frozen parameter was changed",
    )


@exercise("phase1/average_gradients", points=1.5)
def test_tied_parameters_are_averaged_once(ranks, rng):
    """A parameter that two layers share is averaged once."""
    grads = rng.standard_normal((3, 2, 2))  # (rank, out, in)

    def probe(rank, trainer, grads):
        seed_weights(2)
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
        model[1].weight = model[0].weight
        model[0].weight.grad = torch.from_numpy(grads[rank])
        trainer.average_gradients(model)
        return {"weight": model[0].weight.grad}

    seen = ranks(probe, 3, grads=by_rank(grads))

    raise_mistake(nobody_waited(seen, GRADIENTS))
    local = [{"weight": grad} for grad in grads]
    assert_on_every_rank(
        seen,
        mean_of(local),
        mistakes=gradient_mistakes(local),
        otherwise=NOT_THE_MEAN.format("3 ranks, with a weight that two layers share,"),
    )
