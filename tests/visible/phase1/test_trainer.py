"""The visible tests of the model on two ranks, for `gradsync check`, with small numbers."""

import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, ends_with, exercise, raise_mistake, seen_of
from support.probes.names import PARTS, first_numbers, model_named, name_sets
from support.probes.seeding import seed_weights
from support.rules.absent_gradients import none_gradient_skipped
from support.rules.broadcast import broadcast_mistakes
from support.rules.gradients import gradient_mistakes
from support.rules.names import order_depends_on_names
from support.rules.waiting import nobody_waited

MODEL, GRADIENTS, STEP = "Model synchronisation", "Gradient aggregation", "The training step"


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
def test_an_earlier_optimizer_still_trains_the_model(ranks):
    """The weight becomes 5 on both ranks, and then an optimizer step changes it to 4."""

    def probe(rank, trainer):
        model = one_weight(5.0 if rank == 0 else 9.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer.broadcast_model(model)
        model.weight.grad = torch.ones(1, 1)
        optimizer.step()
        return model.weight.item()

    seen = ranks(probe, world_size=2)

    assert_on_every_rank(
        seen,
        4.0,
        mistakes=[
            ends_with(
                [5.0, 5.0],
                "tensors-replaced",
                "An optimizer created before broadcast_model does not change the model after it: "
                "the model now has other parameter objects than the optimizer. Change the "
                "parameters in place.",
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
    """The weight's gradients 2 and 6 become 4 on both ranks, the bias's 1 and 5 become 3.

    The parameters are averaged in the model's order: their names may differ between ranks.
    """

    def probe(rank, trainer):
        seed_weights(2)  # all ranks have the same model
        model = nn.Linear(1, 1)
        model.weight.grad = torch.tensor([[2.0]] if rank == 0 else [[6.0]])
        model.bias.grad = torch.tensor([1.0] if rank == 0 else [5.0])
        trainer.average_gradients(model)
        return numbers_in_gradients(model)

    seen = ranks(probe, world_size=2)

    raise_mistake(nobody_waited(seen, GRADIENTS))
    before = [{"weight": 2.0, "bias": 1.0}, {"weight": 6.0, "bias": 5.0}]
    mean = {"weight": 4.0, "bias": 3.0}
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
            param.grad = param.detach() + 10.0 * rank
        trainer.average_gradients(model)
        return first_numbers([param.grad for param in model.parameters()])

    again = seen_of(lambda: ranks(probe_names, world_size=2, names=name_sets(2, seed=1)))
    means = [5.0 + part for part in range(PARTS)]  # of 0 and 10, of 1 and 11, ...
    raise_mistake(order_depends_on_names(again, means, "averaged", GRADIENTS))


@exercise("phase1/average_gradients", points=1)
def test_three_ranks_divide_by_three(ranks):
    """The gradients 2, 6 and 1 on three ranks become 3 on all of them."""

    def probe(rank, trainer):
        model = one_weight(0.0)
        model.weight.grad = torch.tensor([[[2.0, 6.0, 1.0][rank]]])
        trainer.average_gradients(model)
        return numbers_in_gradients(model)

    seen = ranks(probe, world_size=3)

    raise_mistake(nobody_waited(seen, GRADIENTS))
    before = [{"weight": 2.0}, {"weight": 6.0}, {"weight": 1.0}]
    assert_on_every_rank(
        seen,
        {"weight": 3.0},
        mistakes=gradient_mistakes(before),
        otherwise="the gradients 2, 6 and 1 on three ranks should become 3 on all of them, but "
        f"they became {[value['weight'] for value in seen]}",
    )


@exercise("phase1/average_gradients", points=1)
def test_a_missing_gradient_counts_as_zero(ranks):
    """The gradient is 6 on rank 0 and None on rank 1: the mean of 6 and 0 is 3."""

    def probe(rank, trainer):
        model = one_weight(0.0)
        if rank == 0:
            model.weight.grad = torch.tensor([[6.0]])
        trainer.average_gradients(model)
        return numbers_in_gradients(model)

    skipped = none_gradient_skipped([1], "weight")
    seen = ranks(probe, world_size=2, mistakes=[skipped])

    before = [{"weight": 6.0}, {"weight": 0.0}]
    assert_on_every_rank(seen, {"weight": 3.0}, mistakes=[skipped, *gradient_mistakes(before)])


def take_a_step(rank, trainer):
    """Fit `weight * 1 = 1` on rank 0 and `weight * 2 = 3` on rank 1, starting at weight 0."""
    model = one_weight(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = ([[1.0]], [[1.0]]) if rank == 0 else ([[2.0]], [[3.0]])  # (sample, 1)
    batch = (torch.tensor(inputs), torch.tensor(targets))
    loss = trainer.train_step(model, batch, nn.MSELoss(), optimizer)
    return {"weight": model.weight.item(), "loss": loss}


@exercise("phase1/train_step", points=1)
def test_two_ranks_step_as_one_process_with_both_samples(ranks):
    """The gradients are -2 and -12, their mean is -7, and at rate 0.1 the weight becomes 0.7."""

    def probe(rank, trainer):
        return take_a_step(rank, trainer)["weight"]

    seen = ranks(probe, world_size=2)

    assert_on_every_rank(
        seen,
        0.7,
        mistakes=[
            ends_with(
                [0.2, 1.2],
                "gradients-not-synchronised",
                "After a step, the weights are 0.2 and 1.2 by rank, but should be 0.7 on both. "
                "Each rank stepped with its own gradient, -2 and -12, instead of the mean, -7.",
                STEP,
            ),
            ends_with(
                [1.4, 1.4],
                "sum-not-mean",
                "After a step, the weight is 1.4, but should be 0.7. The ranks stepped with the "
                "sum of their gradients, -14, instead of the mean, -7.",
                STEP,
            ),
            ends_with(
                [0.0, 0.0],
                "does-not-learn",
                "After a step, the weight is still 0, but should be 0.7. Were `backward()` and "
                "`step()` called, with brackets? Were the gradients cleared before `backward()`, "
                "not after it?",
                STEP,
            ),
        ],
        otherwise=f"after a step, the weights are {list(seen)} by rank, but should be 0.7 on both",
    )


@exercise("phase1/train_step", points=1)
def test_the_loss_is_the_mean_over_the_ranks(ranks):
    """The loss is 1 on rank 0 and 9 on rank 1: both ranks return 5."""

    def probe(rank, trainer):
        return take_a_step(rank, trainer)["loss"]

    seen = ranks(probe, world_size=2)

    assert_on_every_rank(
        seen,
        5.0,
        mistakes=[
            ends_with(
                [1.0, 9.0],
                "loss-is-local",
                "Each rank returns the loss of its own batch, 1 and 9. Both should return the "
                "mean, 5.",
                STEP,
            )
        ],
        otherwise=f"by rank, train_step returns {list(seen)}. Both ranks should return 5, the mean "
        "of their losses 1 and 9",
    )


@exercise("phase1/train_step", points=1)
def test_the_gradient_of_a_step_is_cleared_for_the_next(ranks):
    """Two steps of a single rank change the weight from 0 to 0.2 and then to 0.36."""

    def probe(trainer):
        model = one_weight(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        weights = []
        for _ in range(2):
            batch = (torch.ones(1, 1), torch.ones(1, 1))
            trainer.train_step(model, batch, nn.MSELoss(), optimizer)
            weights.append(model.weight.item())
        return weights

    seen = ranks(probe, world_size=1)

    assert_on_every_rank(
        seen,
        [0.2, 0.36],  # the gradients are 2 * (0 - 1) = -2 and 2 * (0.2 - 1) = -1.6
        mistakes=[
            ends_with(
                [[0.2, 0.56]],
                "gradients-not-zeroed",
                "Two steps change the weight from 0 to 0.2 and then to 0.56, but should lead to "
                "0.36. The gradient of the first step was added to that of the second: clear it.",
                STEP,
            )
        ],
        otherwise=f"two steps from weight 0 lead to {seen[0]}, but should lead to [0.2, 0.36]",
    )
