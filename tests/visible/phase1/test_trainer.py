"""The visible tests of the model on two ranks, for `gradsync check`, with small numbers."""

import numpy as np
import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, each, exercise, raise_mistake
from support.probes.seeding import seed_weights
from support.promises import replicas
from support.rules.absent_gradients import none_gradient_skipped
from support.rules.broadcast import broadcast_mistakes
from support.rules.gradients import gradient_mistakes
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
    """Rank 0's model is full of 10s, rank 1's of 11s, rank 2's of 15s: all become 10s."""
    numbers = [10, 11, 15]

    def probe(rank, trainer):
        model = full_of(numbers[rank])
        trainer.broadcast_model(model)
        return model.state_dict()

    seen = ranks(probe, world_size=3)

    raise_mistake(nobody_waited(seen, MODEL))
    before = [full_of(number).state_dict() for number in numbers]
    buffers = ["running_mean", "running_var", "num_batches_tracked"]
    assert_on_every_rank(seen, before[0], mistakes=broadcast_mistakes(before, 0, buffers))


@exercise("phase1/broadcast_model", points=1)
def test_every_tensor_arrives_bit_for_bit(ranks):
    """Large integers, float64, booleans and -0.0 arrive as they are, and frozen parameters too."""
    replicas.model_of_source(ranks, [1, 2], src=0)


@exercise("phase1/broadcast_model", points=1)
def test_all_ranks_broadcast_in_the_same_order(ranks):
    """The order is the model's: it depends on no hash, and names may differ between ranks."""
    replicas.broadcast_in_one_order(ranks, 2, seed=1)


@exercise("phase1/broadcast_model", points=1)
def test_the_source_may_be_another_rank(ranks):
    """With src=1, the parameters and buffers of rank 1 replace those of rank 0."""
    replicas.model_of_source(ranks, [1, 2], src=1)


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


@exercise("phase1/broadcast_model", points=1)
def test_parameters_and_buffers_stay_the_same_objects(ranks):
    """After a broadcast, each parameter and each buffer is the same object as before."""
    replicas.same_objects_after_broadcast(ranks)


@exercise("phase1/broadcast_model", points=1)
def test_gradients_and_frozen_flags_are_not_changed(ranks):
    """A broadcast leaves each rank's gradients, and the choice of trainable parameters, alone."""
    replicas.gradients_kept_in_broadcast(ranks)


def numbers_in_gradients(model):
    return {
        name: p.grad if p.grad is None else p.grad.item() for name, p in model.named_parameters()
    }


@exercise("phase1/average_gradients", points=1)
def test_gradients_become_their_mean(ranks):
    """The weight's gradients 2 and 7 become 4.5 on both ranks, the bias's 1 and 4 become 2.5."""

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


@exercise("phase1/average_gradients", points=1)
def test_ranks_without_a_gradient_take_part(ranks):
    """Of 4 ranks, two have no gradient of the bias; of 2 ranks, one has no gradient at all.

    No rank blocks if only rank 0 has NaN.
    """
    weights = np.array([[[1.0]], [[2.0]], [[3.0]], [[6.0]]])  # (rank, out, in), of mean 3
    biases = np.array([[4.0], [0.0], [0.0], [8.0]])  # (rank, out), of mean 3
    replicas.missing_counts_as_zero(ranks, weights, biases, {1, 2})
    replicas.idle_rank_takes_part(ranks, weights[2:], idle=1)


@exercise("phase1/average_gradients", points=1)
def test_frozen_parameters_are_not_changed(ranks):
    """The frozen weight keeps its gradients, 1 on rank 0 and 2 on rank 1; others become means."""
    stale = np.array([np.full((3, 2), 1.0), np.full((3, 2), 2.0)])  # (rank, out, in)
    before = np.array([[[1.0, 2.0, 3.0]], [[5.0, 6.0, 7.0]]])  # (rank, out, in)
    replicas.frozen_unchanged(ranks, stale, before, after=10 * before)


@exercise("phase1/average_gradients", points=1)
def test_every_parameter_keeps_its_own_dtype(ranks):
    """float64 gradients are averaged as float64, and float32 ones as float32."""
    wide = np.array([[1.0, 0.1, 1 / 3], [2.0, 0.3, 1 / 7]])  # (rank, element)
    narrow = np.array([[1.0, 0.1], [2.0, 0.3]], dtype=np.float32)
    replicas.own_dtype_kept(ranks, wide, narrow, single=np.array([1.0, 2.0], dtype=np.float32))


@exercise("phase1/average_gradients", points=1)
def test_tied_parameters_are_averaged_once(ranks):
    """A weight that two layers share has the gradients 1 and 3, which become 2."""
    replicas.tied_averaged_once(ranks, np.array([np.full((2, 2), 1.0), np.full((2, 2), 3.0)]))


@exercise("phase1/average_gradients", points=1)
def test_all_ranks_average_in_the_same_order(ranks):
    """The order is the model's: it depends on no hash, and names may differ between ranks."""
    replicas.averaged_in_one_order(ranks, 2, seed=1)


@exercise("phase1/average_gradients", points=1)
def test_one_rank_keeps_its_gradients(ranks):
    """On a single rank the mean is the gradient itself."""
    weights = np.array([[[3.0]]], dtype=np.float32)  # (rank, out, in)
    replicas.mean_on_every_rank(ranks, weights, np.array([[5.0]], dtype=np.float32))
