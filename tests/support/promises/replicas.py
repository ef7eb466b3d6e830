"""What one model on N ranks promises: broadcasting it, and averaging its gradients."""

import numpy as np
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
    raise_mistake,
    seen_of,
)
from gradsync.text import counted, listed, verb
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
from support.rules.names import mixed_means, order_depends_on_names
from support.rules.waiting import nobody_waited, skipped_because_of_nan

MODEL, GRADIENTS = "Model synchronisation", "Gradient aggregation"
NOT_THE_MEAN = "the gradients on {} are not the mean over the ranks"


def model_of_source(ranks, seeds, src):
    """Check that every parameter and buffer equals rank src's; `seeds` has one for each rank."""

    def probe(rank, trainer, seeds, src):
        model = motley_model(seeds[rank], rank, spoilt=rank != src)
        trainer.broadcast_model(model, src=src)
        return tensors_of(model)

    seen = ranks(probe, len(seeds), seeds=by_rank(seeds), src=src)

    raise_mistake(nobody_waited(seen, MODEL))
    before = [tensors_of(motley_model(s, spoilt=r != src)) for r, s in enumerate(seeds)]
    assert_on_every_rank(
        seen,
        before[src],
        mistakes=broadcast_mistakes(before, src, BUFFERS),
        roundings=EXACT,
    )
    raise_mistake(bits_differ(seen, [before[src]] * len(seeds)))


def broadcast_in_one_order(ranks, world_size, seed):
    """Check that the order of the broadcasts depends on no hash or address."""

    def probe(rank, trainer, names):
        model = model_named(names[rank], rank, 10.0 * rank, buffers=True)
        trainer.broadcast_model(model)
        return first_numbers([*model.parameters(), *model.buffers()])

    numbers = [float(first + k) for first in (0, 100) for k in range(PARTS)]
    again = seen_of(lambda: ranks(probe, world_size, names=name_sets(world_size, seed)))
    possible = [[numbers] * len(numbers)] * world_size  # any tensor of rank 0
    raise_mistake(order_depends_on_names(again, numbers, possible, "replaced", MODEL))


def same_objects_after_broadcast(ranks):
    """Check that the tensors are the same objects, so that an optimizer still trains them."""

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


def gradients_kept_in_broadcast(ranks):
    """Check that a broadcast does not change `grad` or `requires_grad` of any parameter."""

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


def average(ranks, local):
    """Make the ranks average gradients, a dict for each; return what they end with."""

    def probe(rank, trainer, local):
        seed_weights(2)
        outputs, inputs = local[rank]["weight"].shape
        model = placed(nn.Linear(inputs, outputs), rank)
        for name, param in model.named_parameters():
            param.grad = torch.from_numpy(local[rank][name])
        trainer.average_gradients(model)
        return {name: param.grad for name, param in model.named_parameters()}

    seen = ranks(probe, len(local), local=by_rank(local))
    raise_mistake(nobody_waited(seen, GRADIENTS))
    return seen


def with_zeros(gradients):
    """Replace a missing gradient of the bias by zeros."""
    weight, bias = gradients["weight"], gradients["bias"]
    return {"weight": weight, "bias": np.zeros(len(weight)) if bias is None else bias}


def check_synchronised(seen, local):
    """Check that the ranks do not end with their own gradients, unchanged, or with zeros."""
    raise_mistake(not_synchronised(local)(seen, local))
    raise_mistake(all_zero(seen, local))


def mean_on_every_rank(ranks, weights, biases):
    """Check that gradients (rank, out, in) and (rank, out) become their means on every rank."""
    local = [{"weight": w, "bias": b} for w, b in zip(weights, biases, strict=True)]
    world_size = len(local)

    def on_other_ranks():
        scales = range(1, world_size % 3 + 3)
        others = [{name: k * grad for name, grad in local[0].items()} for k in scales]
        return average(ranks, others), others

    assert_on_every_rank(
        average(ranks, local),
        mean_of(local),
        mistakes=[always_divided_by(world_size, on_other_ranks), *gradient_mistakes(local)],
        otherwise=NOT_THE_MEAN.format(counted(world_size, "rank")),
    )
    if world_size == 1:  # a function that does nothing is also correct here
        check_synchronised(*on_other_ranks())


def averaged_in_one_order(ranks, world_size, seed):
    """Check that the order in which gradients are averaged depends on no hash or address."""

    def probe(rank, trainer, names):
        model = model_named(names[rank], rank)
        for param in model.parameters():
            # With equal shares, two ranks that exchange parts in pairs would have equal results.
            param.grad = (1 + 2 * rank) * param.detach() + 10.0 * rank
        trainer.average_gradients(model)
        return first_numbers([param.grad for param in model.parameters()])

    means = [world_size * k + 5.0 * (world_size - 1) for k in range(PARTS)]
    again = seen_of(lambda: ranks(probe, world_size, names=name_sets(world_size, seed)))
    own = [[(1 + 2 * r) * k + 10.0 * r for k in range(PARTS)] for r in range(world_size)]
    possible = mixed_means(own)
    raise_mistake(order_depends_on_names(again, means, possible, "averaged", GRADIENTS))


def own_dtype_kept(ranks, wide, narrow, single):
    """Check that gradients are averaged in their own dtype: float64, and two of float32.

    Their shapes are (rank, element), (rank, element) and (rank,).
    """
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


def missing_counts_as_zero(ranks, grads, biases, without):
    """Check gradients (rank, out, in) and (rank, out), the latter missing on the ranks `without`.

    With NaN on rank 0 only, no rank blocks either.
    """
    biases = np.where(np.isin(np.arange(len(biases)), list(without))[:, None], 0, biases)

    def probe(rank, trainer, grads, biases, without):
        spoil_new_memory()
        seed_weights(2)
        outputs, inputs = grads[rank].shape
        model = placed(nn.Linear(inputs, outputs).double(), rank)
        model.weight.grad = torch.from_numpy(grads[rank])
        if rank not in without:
            model.bias.grad = torch.from_numpy(biases[rank])
        trainer.average_gradients(model)
        return {name: param.grad for name, param in model.named_parameters()}

    skipped = none_gradient_skipped(sorted(without), "bias")
    inputs = {"grads": by_rank(grads), "biases": by_rank(biases), "without": without}
    size = len(grads)
    seen = ranks(probe, size, mistakes=[skipped], **inputs)

    raise_mistake(nobody_waited(seen, GRADIENTS))
    local = [{"weight": w, "bias": b} for w, b in zip(grads, biases, strict=True)]
    check_synchronised(each(seen, with_zeros), local)
    assert_on_every_rank(
        seen,
        mean_of(local),
        mistakes=[skipped, *gradient_mistakes(local)],
        otherwise=NOT_THE_MEAN.format(
            f"{size} ranks, {len(without)} of which {verb(without, 'has', 'have')} no gradient of "
            "the bias,"
        ),
    )
    for name, part in (("grads", grads), ("biases", biases)):
        inputs[name] = by_rank(np.stack([np.full_like(part[0], np.nan), part[1]]))
    apart = skipped_because_of_nan(0, "a gradient", GRADIENTS)
    check_no_deadlock(lambda: ranks(probe, 2, mistakes=[apart], **inputs))


def idle_rank_takes_part(ranks, grads, idle):
    """Check gradients (rank, out, in) of a model of which the rank `idle` has none at all."""
    grads = np.where(np.arange(len(grads))[:, None, None] == idle, 0, grads)

    def probe(rank, trainer, grads, idle):
        spoil_new_memory()
        model = placed(nn.Linear(grads[rank].shape[1], len(grads[rank]), bias=False).double(), rank)
        if rank != idle:
            model.weight.grad = torch.from_numpy(grads[rank])
        trainer.average_gradients(model)
        return {"weight": model.weight.grad}

    skipped = none_gradient_skipped([idle], "weight")
    seen = ranks(probe, len(grads), mistakes=[skipped], grads=by_rank(grads), idle=idle)

    _check_mean(seen, grads, "one of which has no gradient at all,")


def _check_mean(seen, grads, which):
    """Check that each rank ends with the mean of the gradients (rank, out, in) of one weight."""
    raise_mistake(nobody_waited(seen, GRADIENTS))
    local = [{"weight": grad} for grad in grads]
    assert_on_every_rank(
        seen,
        mean_of(local),
        mistakes=gradient_mistakes(local),
        otherwise=NOT_THE_MEAN.format(f"{len(grads)} ranks, {which}"),
    )


def frozen_unchanged(ranks, stale, before, after):
    """Check that the gradient of a frozen weight stays as it is, and a missing one stays missing.

    `stale` (rank, 3, 2) are the gradients of the frozen weight; `before` and `after` (rank, 1, 3)
    those of the trainable weights around it.
    """
    fresh = [{"0.weight": b, "2.weight": a} for b, a in zip(before, after, strict=True)]

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


def tied_averaged_once(ranks, grads):
    """Check that a parameter that two layers share, with gradients (rank, 2, 2), counts once."""

    def probe(rank, trainer, grads, layers):
        seed_weights(2)
        first, *more = (nn.Linear(2, 2, bias=False).double() for _ in range(layers))
        for layer in more:
            layer.weight = first.weight
        first.weight.grad = torch.from_numpy(grads[rank])
        trainer.average_gradients(nn.Sequential(first, *more))
        return {"weight": first.weight.grad}

    one, seen = (ranks(probe, len(grads), grads=by_rank(grads), layers=n) for n in (1, 2))

    _check_mean(seen, grads, "with a weight that two layers share,")
    calls = [len(run.collectives(0)) for run in (one, seen)]
    check(
        calls[1] <= calls[0],
        "too-many-bytes",
        f"For a model with one weight, average_gradients calls {counted(calls[0], 'collective')}; "
        f"if two layers share this weight, {calls[1]}. Go through the parameters, not the layers, "
        "so that a shared parameter comes once.",
        guide=GRADIENTS,
    )
