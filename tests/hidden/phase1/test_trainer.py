"""One model on N ranks: the same start, the same gradients, the same step."""

import numpy as np
import pytest
import torch
from torch import nn

from gradsync.diagnose.broadcast import broadcast_mistakes
from gradsync.diagnose.gradients import gradient_mistakes, none_gradient_skipped
from gradsync.testing import (
    EXACT,
    assert_on_every_rank,
    assert_rank_by_rank,
    check,
    differs_from_one_process,
    exercise,
    would_be,
)

MODEL, GRADIENTS, STEP = "Model synchronisation", "Gradient aggregation", "The training step"
LEARNING_RATE, MOMENTUM = 0.2, 0.9
BUFFERS = ["1.running_mean", "1.running_var", "1.num_batches_tracked", "mask"]


def make_model(seed):
    """Return a model with everything that can be forgotten, other weights for another seed."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 4))
    model[3].bias.requires_grad_(False)
    model.register_buffer("mask", torch.rand(5) > 0.5, persistent=False)
    for buffer in (model[1].running_mean, model[1].running_var):
        buffer.uniform_()
    model[1].num_batches_tracked += seed
    return model


def tensors_of(model):
    return {
        name: t.detach().clone() for name, t in [*model.named_parameters(), *model.named_buffers()]
    }


@pytest.mark.parametrize(("world_size", "src"), [(3, 0), (2, 1)])
@exercise("phase1/broadcast_model", points=6)
def test_every_rank_ends_with_the_source_model(ranks, rng, world_size, src):
    """Every parameter and every buffer equals rank src's, bit for bit."""
    seeds = [int(s) for s in rng.choice(1000, world_size, replace=False)]

    def probe(rank, trainer, seeds, src):
        model = make_model(seeds[rank])
        trainer.broadcast_model(model, src)
        return tensors_of(model)

    seen = ranks(probe, world_size, seeds=seeds, src=src)

    before = [tensors_of(make_model(seed)) for seed in seeds]
    assert_on_every_rank(
        seen,
        before[src],
        mistakes=broadcast_mistakes(before, src, BUFFERS),
        roundings=EXACT,
    )


@exercise("phase1/broadcast_model", points=2.5)
def test_parameters_and_buffers_stay_the_same_objects(ranks):
    """An optimizer made before the broadcast still holds the model's parameters."""

    def probe(rank, trainer):
        model = make_model(rank)
        before = [*model.parameters(), *model.buffers()]
        trainer.broadcast_model(model)
        after = [*model.parameters(), *model.buffers()]
        return [a is b for a, b in zip(before, after, strict=True)]

    seen = ranks(probe, 2)

    check(
        all(all(same) for same in seen),
        "tensors-replaced",
        "after broadcast_model the model holds other parameter or buffer objects than before: an "
        f"optimizer made earlier would go on training the old ones (GUIDELINES, {MODEL})",
        ranks=[rank for rank in range(2) if not all(seen[rank])],
        guide=MODEL,
    )


@exercise("phase1/broadcast_model", points=1.5)
def test_gradients_and_frozen_flags_are_untouched(ranks):
    """What a rank had in `grad` and `requires_grad` is there afterwards."""

    def probe(rank, trainer):
        model = make_model(rank)
        model[0].weight.grad = torch.full_like(model[0].weight, rank + 1.0)
        before = [p.requires_grad for p in model.parameters()]
        trainer.broadcast_model(model)
        kept = [p.requires_grad for p in model.parameters()] == before
        grads = [p.grad is None for p in model.parameters()]
        return [kept, grads == [False] + [True] * 5, model[0].weight.grad]

    seen = ranks(probe, 2)

    expected = [[True, True, np.full((3, 1, 2, 2), rank + 1.0)] for rank in range(2)]
    assert_rank_by_rank(
        seen,
        expected,
        otherwise="broadcast_model changed `requires_grad` or the gradients of a parameter",
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@exercise("phase1/average_gradients", points=6)
def test_every_rank_ends_with_the_mean(ranks, rng, world_size):
    """Different gradients on each rank become their mean on every rank."""
    grads = rng.standard_normal((world_size, 3, 2), dtype=np.float32)  # (rank, out, in)
    biases = rng.standard_normal((world_size, 3), dtype=np.float32)  # (rank, out)
    local = [{"weight": w, "bias": b} for w, b in zip(grads, biases, strict=True)]

    def probe(rank, trainer, local):
        model = nn.Linear(2, 3)
        for name, param in model.named_parameters():
            param.grad = torch.from_numpy(local[rank][name])
        trainer.average_gradients(model)
        return {name: param.grad for name, param in model.named_parameters()}

    seen = ranks(probe, world_size, local=local)

    mean = {"weight": grads.mean(0), "bias": biases.mean(0)}
    assert_on_every_rank(seen, mean, mistakes=gradient_mistakes(local))


@exercise("phase1/average_gradients", points=1)
def test_every_parameter_keeps_its_own_dtype(ranks, rng):
    """Parameters of several dtypes and sizes are averaged, each in its own dtype."""
    wide = rng.standard_normal((2, 1000))  # (rank, element)
    narrow = rng.standard_normal((2, 7), dtype=np.float32)
    local = [{"wide": w, "narrow": n} for w, n in zip(wide, narrow, strict=True)]

    def probe(rank, trainer, local):
        model = nn.Module()
        for name, grad in local[rank].items():
            model.register_parameter(name, nn.Parameter(torch.zeros_like(torch.from_numpy(grad))))
            getattr(model, name).grad = torch.from_numpy(grad)
        trainer.average_gradients(model)
        grads = {name: param.grad for name, param in model.named_parameters()}
        return [grads, {name: str(grad.dtype) for name, grad in grads.items()}]

    seen = ranks(probe, 2, local=local)

    mean = {"wide": wide.mean(0), "narrow": narrow.mean(0)}
    dtypes = {"wide": "torch.float64", "narrow": "torch.float32"}
    assert_on_every_rank(
        seen,
        [mean, dtypes],
        otherwise="a model with parameters of float64 and float32 does not end with the mean, "
        "each in its own dtype",
    )


@exercise("phase1/average_gradients", points=3)
def test_a_missing_gradient_counts_as_zero(ranks, rng):
    """A parameter without a gradient on some ranks adds zero there, and no rank is left waiting."""
    without = {1, 2}
    grads = rng.standard_normal((4, 3, 2))  # (rank, out, in)
    biases = rng.standard_normal((4, 3))  # (rank, out)
    biases[list(without)] = 0

    def probe(rank, trainer, grads, biases, without):
        model = nn.Linear(2, 3).double()
        model.weight.grad = torch.from_numpy(grads[rank])
        if rank not in without:
            model.bias.grad = torch.from_numpy(biases[rank])
        trainer.average_gradients(model)
        return {name: param.grad for name, param in model.named_parameters()}

    skipped = none_gradient_skipped(sorted(without), ["bias"])
    inputs = {"grads": grads, "biases": biases, "without": without}
    seen = ranks(probe, 4, mistakes=[skipped], **inputs)

    mean = {"weight": grads.mean(0), "bias": biases.mean(0)}
    local = [{"weight": w, "bias": b} for w, b in zip(grads, biases, strict=True)]
    assert_on_every_rank(seen, mean, mistakes=[*gradient_mistakes(local)[:2], skipped])


@exercise("phase1/average_gradients", points=1.5)
def test_frozen_parameters_are_left_alone(ranks, rng):
    """What a frozen parameter has in `grad`, or has not, stays."""
    stale = rng.standard_normal((2, 3, 2))  # (rank, out, in)

    def probe(rank, trainer, stale):
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).double()
        model[0].requires_grad_(False)
        model[0].weight.grad = torch.from_numpy(stale[rank])
        model[1].weight.grad = torch.ones(1, 3).double()
        model[1].bias.grad = torch.ones(1).double()
        trainer.average_gradients(model)
        return [model[0].weight.grad, model[0].bias.grad is None]

    seen = ranks(probe, 2, stale=stale)

    assert_rank_by_rank(
        seen,
        [[stale[rank], True] for rank in range(2)],
        mistakes=[
            would_be(
                [[stale.mean(0), none]] * 2,
                "frozen-touched",
                "the gradient of a frozen parameter was averaged: frozen parameters are left alone",
                GRADIENTS,
            )
            for none in (True, False)
        ]
        + [
            would_be(
                [[stale[rank], False] for rank in range(2)],
                "frozen-touched",
                "a frozen parameter had no gradient and has one now: frozen parameters are left "
                "alone",
                GRADIENTS,
            )
        ],
        otherwise="the gradient of a frozen parameter was changed",
    )


@exercise("phase1/average_gradients", points=1.5)
def test_tied_parameters_are_averaged_once(ranks, rng):
    """A parameter that two layers share is one parameter."""
    grads = rng.standard_normal((3, 2, 2))  # (rank, out, in)

    def probe(rank, trainer, grads):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)).double()
        model[1].weight = model[0].weight
        model[0].weight.grad = torch.from_numpy(grads[rank])
        trainer.average_gradients(model)
        return {"weight": model[0].weight.grad}

    seen = ranks(probe, 3, grads=grads)

    local = [{"weight": grad} for grad in grads]
    assert_on_every_rank(seen, {"weight": grads.mean(0)}, mistakes=gradient_mistakes(local))


class Net(nn.Module):
    """Tied, frozen and unused parameters in one small classifier of float64."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(5, 2)
        self.last = nn.Linear(5, 3)
        torch.manual_seed(7)
        for param in self.parameters():
            nn.init.uniform_(param, -0.7, 0.7)
        self.double()

    def forward(self, inputs):
        return self.last(self.frozen(torch.tanh(self.tied(torch.tanh(self.first(inputs))))))


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def optimizer_for(model):
    trainable = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trainable, lr=LEARNING_RATE, momentum=MOMENTUM)


def draw_batches(rng, steps, world_size, size):
    """Return inputs (step, rank, sample, 5) and targets (step, rank, sample)."""
    inputs = rng.standard_normal((steps, world_size, size, 5)) * 2
    return inputs, rng.integers(0, 3, (steps, world_size, size))


def probe_steps(rank, trainer, inputs, targets):
    """Return this rank's weights and losses after a step on each of its batches."""
    model = Net()
    optimizer = optimizer_for(model)
    losses = [
        trainer.train_step(
            model,
            (torch.from_numpy(x[rank]), torch.from_numpy(y[rank])),
            nn.CrossEntropyLoss(),
            optimizer,
        )
        for x, y in zip(inputs, targets, strict=True)
    ]
    return {"weights": weights_of(model), "losses": losses}


def one_process(inputs, targets, *, rank=None, scale=1.0, zero=True):
    """Do the same in one process: on all ranks' samples, or as a mistake would have it."""
    model = Net()
    trainable = [p for p in model.parameters() if p.requires_grad]
    velocity = {}
    losses = []
    for x, y in zip(inputs, targets, strict=True):
        chosen = slice(None) if rank is None else slice(rank, rank + 1)
        samples = torch.from_numpy(x[chosen].reshape(-1, x.shape[-1]))
        if zero:
            model.zero_grad()
        loss = nn.functional.cross_entropy(model(samples), torch.from_numpy(y[chosen].reshape(-1)))
        loss.backward()
        with torch.no_grad():
            for param in (p for p in trainable if p.grad is not None):
                param.grad *= scale
                velocity[param] = MOMENTUM * velocity.get(param, 0) + param.grad
                param -= LEARNING_RATE * velocity[param]
        losses.append(loss.item())
    return {"weights": weights_of(model), "losses": losses}


@pytest.mark.parametrize("world_size", [1, 2, 3])
@exercise("phase1/train_step", points=5)
def test_steps_equal_those_of_one_process(ranks, rng, world_size):
    """After each of several steps, N ranks of B samples have the weights of one with N*B."""
    inputs, targets = draw_batches(rng, 4, world_size, 6)

    seen = ranks(probe_steps, world_size, inputs=inputs, targets=targets)

    def wrong(code, text, results):
        keep = [{"weights": r["weights"], "losses": s["losses"]} for r, s in zip(results, seen)]
        return would_be(keep, code, text, STEP)

    alone = [one_process(inputs, targets, rank=rank) for rank in range(world_size)]
    summed = one_process(inputs, targets, scale=world_size)
    kept = one_process(inputs, targets, zero=False)
    expected = one_process(inputs, targets)
    assert_rank_by_rank(
        seen,
        [{"weights": expected["weights"], "losses": value["losses"]} for value in seen],
        mistakes=[
            wrong(
                "gradients-not-synchronised",
                "each rank ends with the weights of a process that trained on its own samples "
                "alone: the gradients were not averaged between backward and step",
                alone,
            ),
            wrong(
                "sum-not-mean",
                f"the weights are those of steps {world_size} times as long: the gradients were "
                "summed over the ranks, not averaged",
                [summed] * world_size,
            ),
            wrong(
                "gradients-not-zeroed",
                "the weights are those of steps with the gradients of all earlier steps added in: "
                "they have to be cleared for each step",
                [kept] * world_size,
            ),
            differs_from_one_process(STEP, f"{world_size} ranks with 6 samples each"),
        ],
    )


@exercise("phase1/train_step", points=2)
def test_the_returned_loss_is_the_mean_over_ranks(ranks, rng):
    """Every rank returns the same float: the mean of the ranks' losses before the step."""
    inputs, targets = draw_batches(rng, 1, 3, 6)

    def probe(rank, trainer, inputs, targets):
        [loss] = probe_steps(rank, trainer, inputs, targets)["losses"]
        return [type(loss).__name__, float(loss)]

    seen = ranks(probe, 3, inputs=inputs, targets=targets)

    own = [one_process(inputs, targets, rank=rank)["losses"][0] for rank in range(3)]
    assert_on_every_rank(
        seen,
        ["float", float(np.mean(own))],
        mistakes=[
            would_be(
                [["float", loss] for loss in own],
                "loss-is-local",
                "every rank returns the loss of its own batch: the mean over the ranks is wanted",
                STEP,
            ),
            would_be(
                [["float", float(np.sum(own))]] * 3,
                "loss-is-local",
                "the returned loss is the sum over the ranks, not their mean",
                STEP,
            ),
        ],
        otherwise="train_step does not return the mean loss over the ranks as a float: by rank "
        f"(type, value) {list(seen)}",
    )


@exercise("phase1/train_step", points=1)
def test_gradients_from_before_do_not_count(ranks, rng):
    """What is left in `grad` when a step begins has no part in it."""
    inputs, targets = draw_batches(rng, 1, 2, 6)

    def probe(rank, trainer, inputs, targets):
        model = Net()
        optimizer = optimizer_for(model)
        for param in model.parameters():
            if param.requires_grad:
                param.grad = torch.ones_like(param)
        batch = (torch.from_numpy(inputs[0][rank]), torch.from_numpy(targets[0][rank]))
        trainer.train_step(model, batch, nn.CrossEntropyLoss(), optimizer)
        return {n: p for n, p in weights_of(model).items() if not n.startswith("unused")}

    seen = ranks(probe, 2, inputs=inputs, targets=targets)

    weights = one_process(inputs, targets)["weights"]
    expected = {n: p for n, p in weights.items() if not n.startswith("unused")}
    stale = {
        n: p - LEARNING_RATE if not n.startswith("frozen") else p for n, p in expected.items()
    }  # a gradient of 1 too many
    assert_on_every_rank(
        seen,
        expected,
        mistakes=[
            would_be(
                [stale] * 2,
                "gradients-not-zeroed",
                "gradients that were there before the step were added to its own: they have to be "
                "cleared for each step",
                STEP,
            ),
            differs_from_one_process(STEP, "2 ranks whose gradients were not empty"),
        ],
    )
