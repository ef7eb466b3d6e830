"""The visible tests of the model on two ranks, for `gradsync check`, with small numbers."""

import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, each, exercise, raise_mistake, seen_of
from support.probes.names import PARTS, first_numbers, model_named, name_sets
from support.probes.seeding import seed_weights
from support.rules.absent_gradients import none_gradient_skipped
from support.rules.broadcast import broadcast_mistakes
from support.rules.gradients import gradient_mistakes
from support.rules.names import order_depends_on_names
from support.rules.waiting import nobody_waited
from support.rules.wrong_results import ends_with

MODEL, GRADIENTS = "Model synchronisation", "Gradient aggregation"


def full_of(number):
    """Return a small model in which every parameter and every buffer is this number."""
    model = nn.BatchNorm1d(2)  # weight, bias; running_mean, running_var, num_batches_tracked
    for tensor in model.state_dict().values():
        tensor.fill_(number)
    return model


def one_weight(value):
    """Return the model `output = weight * input`."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


@exercise("phase1/broadcast_model", points=1)
def test_every_rank_ends_with_the_model_of_rank_0(ranks):
    """Rank 0's model is full of 10s, rank 1's of 11s, rank 2's of 12s: all become 10s.

    The parameters are broadcast in the model's order: their names may differ between ranks.
    """

    def probe(rank, trainer):
        model = full_of(10 + rank)
        trainer.broadcast_model(model)
        return model.state_dict()

    seen = ranks(probe, world_size=3)

    before = [full_of(10 + rank).state_dict() for rank in range(3)]
    buffers = ["running_mean", "running_var", "num_batches_tracked"]
    assert_on_every_rank(seen, before[0], mistakes=broadcast_mistakes(before, 0, buffers))

    def probe_names(rank, trainer, names):
        model = model_named(names[rank], rank, 10.0 * rank)
        trainer.broadcast_model(model)
        return first_numbers(list(model.parameters()))

    again = seen_of(lambda: ranks(probe_names, world_size=2, names=name_sets(2, seed=1)))
    numbers = [float(part) for part in range(PARTS)]
    raise_mistake(order_depends_on_names(again, numbers, "replaced", MODEL))


@exercise("phase1/broadcast_model", points=1)
def test_the_source_may_be_another_rank(ranks):
    """With src=1, the weight 9 of rank 1 replaces the weight 5 of rank 0."""

    def probe(rank, trainer):
        model = one_weight(5.0 if rank == 0 else 9.0)
        trainer.broadcast_model(model, src=1)
        return model.state_dict()

    seen = ranks(probe, world_size=2)

    before = [one_weight(weight).state_dict() for weight in (5.0, 9.0)]
    assert_on_every_rank(seen, before[1], mistakes=broadcast_mistakes(before, 1, []))


@exercise("phase1/broadcast_model", points=1)
def test_an_earlier_optimizer_still_trains_the_model(ranks):
    """The weight becomes 5 on both ranks, and then an optimizer step changes it to 4."""

    def probe(rank, trainer):
        model = one_weight(5.0 if rank == 0 else 9.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer.broadcast_model(model)
        received = model.weight.detach().clone()
        model.weight.grad = torch.ones(1, 1)
        optimizer.step()
        return {"received": {"weight": received}, "stepped": model.weight.item()}

    seen = ranks(probe, world_size=2)

    before = [one_weight(weight).state_dict() for weight in (5.0, 9.0)]
    received = each(seen, lambda value: value["received"])
    assert_on_every_rank(received, before[0], mistakes=broadcast_mistakes(before, 0, []))
    seen = each(seen, lambda value: value["stepped"])
    assert_on_every_rank(
        seen,
        4.0,
        mistakes=[
            ends_with(
                [5.0, 5.0],
                "tensors-replaced",
                "An optimizer created before broadcast_model no longer changes the model, because "
                "the model now has new parameter objects. Change the parameters in place.",
                MODEL,
            )
        ],
        otherwise="the weight was 5 on rank 0 and 9 on rank 1. After broadcast_model and a step by "
        f"1, it is {list(seen)} by rank, but should be 4 on both",
    )


def numbers_in_gradients(model):
    return {
        name: p.grad if p.grad is None else p.grad.item() for name, p in model.named_parameters()
    }


@exercise("phase1/average_gradients", points=1)
def test_gradients_become_their_mean(ranks):
    """The weight's gradients 2 and 7 become 4.5 on both ranks, the bias's 1 and 4 become 2.5.

    The parameters are averaged in the model's order: their names may differ between ranks.
    """

    def probe(rank, trainer):
        seed_weights(2)  # all ranks have the same model
        model = nn.Linear(1, 1)
        model.weight.grad = torch.tensor([[2.0]] if rank == 0 else [[7.0]])
        model.bias.grad = torch.tensor([1.0] if rank == 0 else [4.0])
        trainer.average_gradients(model)
        return numbers_in_gradients(model)

    seen = ranks(probe, world_size=2)

    raise_mistake(nobody_waited(seen, GRADIENTS))
    before = [{"weight": 2.0, "bias": 1.0}, {"weight": 7.0, "bias": 4.0}]
    mean = {"weight": 4.5, "bias": 2.5}
    assert_on_every_rank(
        seen,
        mean,
        mistakes=gradient_mistakes(before),
        otherwise=f"the gradients {before[0]} on rank 0 and {before[1]} on rank 1 should become "
        f"{mean} on both, but they became {list(seen)}",
    )

    def probe_names(rank, trainer, names):
        model = model_named(names[rank], rank)
        for param in model.parameters():
            # With equal shares, two ranks that exchange parts in pairs would have equal results.
            param.grad = (1 + 2 * rank) * param.detach() + 10.0 * rank
        trainer.average_gradients(model)
        return first_numbers([param.grad for param in model.parameters()])

    again = seen_of(lambda: ranks(probe_names, world_size=2, names=name_sets(2, seed=1)))
    means = [5.0 + 2 * part for part in range(PARTS)]  # of 0 and 10, of 1 and 13, ...
    raise_mistake(order_depends_on_names(again, means, "averaged", GRADIENTS))


@exercise("phase1/average_gradients", points=1)
def test_three_ranks_divide_by_three(ranks):
    """The gradients 2, 3 and 10 on three ranks become 5 on all of them."""

    def probe(rank, trainer):
        model = one_weight(0.0)
        model.weight.grad = torch.tensor([[[2.0, 3.0, 10.0][rank]]])
        trainer.average_gradients(model)
        return numbers_in_gradients(model)

    seen = ranks(probe, world_size=3)

    raise_mistake(nobody_waited(seen, GRADIENTS))
    before = [{"weight": 2.0}, {"weight": 3.0}, {"weight": 10.0}]
    assert_on_every_rank(
        seen,
        {"weight": 5.0},
        mistakes=gradient_mistakes(before),
        otherwise="the gradients 2, 3 and 10 on three ranks should become 5 on all of them, but "
        f"they became {[value['weight'] for value in seen]}",
    )


@exercise("phase1/average_gradients", points=1)
def test_a_missing_gradient_counts_as_zero(ranks):
    """The bias's gradient is 6 on rank 0 and None on rank 1: the mean of 6 and 0 is 3."""

    def probe(rank, trainer):
        seed_weights(2)
        model = nn.Linear(1, 1)
        model.weight.grad = torch.tensor([[2.0]] if rank == 0 else [[7.0]])
        if rank == 0:
            model.bias.grad = torch.tensor([6.0])
        trainer.average_gradients(model)
        return numbers_in_gradients(model)

    skipped = none_gradient_skipped([1], "bias")
    seen = ranks(probe, world_size=2, mistakes=[skipped])

    raise_mistake(nobody_waited(seen, GRADIENTS))
    before = [{"weight": 2.0, "bias": 6.0}, {"weight": 7.0, "bias": 0.0}]
    mean = {"weight": 4.5, "bias": 3.0}
    assert_on_every_rank(seen, mean, mistakes=[skipped, *gradient_mistakes(before)])
