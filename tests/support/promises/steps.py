"""What a training step promises: N ranks step as one process with all their samples.

The inputs have the shape (step, rank, sample, 5), the targets (step, rank, sample), of 3 classes.
"""

import numpy as np
import torch
from torch import nn

from gradsync.records import Diagnosis
from gradsync.testing import (
    assert_on_every_rank,
    by_rank,
    check,
    check_no_deadlock,
    each,
    raise_mistake,
    seen_of,
)
from gradsync.text import counted, no_float
from support.probes.devices import devices_met
from support.probes.models import placed
from support.probes.names import PARTS, first_numbers, model_named, name_sets
from support.probes.ready_made import DDP, without
from support.probes.seeding import seed_weights
from support.rules.gpus import batch_not_moved
from support.rules.losses import loss_mistakes
from support.rules.names import mixed_means, order_depends_on_names
from support.rules.rounding import rounded_loss
from support.rules.steps import batch_swapped
from support.rules.waiting import nobody_waited, skipped_because_of_nan
from support.rules.wrong_results import differs_from_one_process, ends_with

GUIDE = "The training step"
LEARNING_RATE, MOMENTUM = 0.01, 0.9
DAMPING = 0.01  # keeps a step from enlarging rounding errors where a gradient is small
STEEP = 6  # makes the gradients' norm larger than 1, so that clipping to 1 has an effect


class Net(nn.Module):
    """A small classifier with tied, frozen and unused parameters, in the dtype of its inputs."""

    def __init__(self, inputs):
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.tied = nn.Linear(5, 5)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(5, 2)
        self.last = nn.Linear(5, 3)
        seed_weights(7)
        for param in self.parameters():
            nn.init.uniform_(param, -0.7, 0.7)
        self.to(torch.from_numpy(inputs).dtype)

    def forward(self, inputs):
        hidden = torch.tanh(self.tied(torch.tanh(self.first(inputs))))
        return STEEP * self.last(self.frozen(hidden))


def weights_of(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def optimizer_for(model, *, adaptive=False):
    """Return SGD, whose steps are sums of gradients, or an `adaptive` optimizer."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if adaptive:
        return torch.optim.Adagrad(trainable, lr=LEARNING_RATE, eps=DAMPING)
    return torch.optim.SGD(trainable, lr=LEARNING_RATE, momentum=MOMENTUM)


def probe_steps(rank, trainer, inputs, targets, *, adaptive=False):
    """Return this rank's weights and losses after a step on each of its batches."""
    model = placed(Net(inputs[0][rank]), rank)
    optimizer = optimizer_for(model, adaptive=adaptive)
    with without(DDP):
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


def probe_both(rank, trainer, inputs, targets):
    """Return the result of `probe_steps`, and as `adapted` the weights of an adaptive optimizer."""
    plain = probe_steps(rank, trainer, inputs, targets)
    adapted = probe_steps(rank, trainer, inputs, targets, adaptive=True)
    return {**plain, "adapted": adapted["weights"]}


def one_process(inputs, targets, *, rank=None, scale=1.0, zero=True, adaptive=False):
    """Do the same in one process: on all ranks' samples, or with a mistake."""
    model = Net(inputs[0][0])
    optimizer = optimizer_for(model, adaptive=adaptive)
    chosen = slice(None) if rank is None else slice(rank, rank + 1)
    losses = []
    for x, y in zip(inputs, targets, strict=True):
        samples, wanted = (torch.from_numpy(np.concatenate(part[chosen])) for part in (x, y))
        if zero:
            optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(samples), wanted)
        loss.backward()
        for param in model.parameters():
            if param.grad is not None:
                param.grad *= scale
        optimizer.step()
        losses.append(loss.item())
    return {"weights": weights_of(model), "losses": losses}


def steps_of_one_process(ranks, inputs, targets):
    """Check the weights after several steps, with SGD and with an adaptive optimizer."""
    world_size = inputs.shape[1]
    data = {"inputs": by_rank(inputs, 1), "targets": by_rank(targets, 1)}
    seen = ranks(probe_both, world_size, mistakes=[batch_swapped], **data)

    raise_mistake(nobody_waited(seen, GUIDE))
    assert_on_every_rank(
        each(seen, lambda value: value["weights"]),
        one_process(inputs, targets)["weights"],
        mistakes=step_mistakes(inputs, targets),
    )
    adapted = each(seen, lambda value: value["adapted"])
    expected = one_process(inputs, targets, adaptive=True)["weights"]
    assert_on_every_rank(adapted, expected, mistakes=[right_with_sums_alone])


def steps_in_one_order(ranks, world_size, seed):
    """Check that the order in which a step averages gradients depends on no hash or address."""

    def probe(rank, trainer, names):
        model = model_named(names[rank], rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        batch = torch.full((2, 1), 5.0 * rank), torch.zeros(2, 1)
        trainer.train_step(model, batch, lambda outputs, _: outputs, optimizer)
        return first_numbers(list(model.parameters()))

    again = seen_of(lambda: ranks(probe, world_size, names=name_sets(world_size, seed)))
    # A part that starts at k has the mean gradient k plus the mean of 10 * rank.
    ended = [-5.0 * (world_size - 1)] * PARTS
    means = mixed_means([[k + 10.0 * rank for k in range(PARTS)] for rank in range(world_size)])
    possible = [[[k - mean for mean in row[k]] for k in range(PARTS)] for row in means]
    raise_mistake(order_depends_on_names(again, ended, possible, "averaged", GUIDE))


def right_with_sums_alone(seen, _expected):
    """Diagnose weights that are right only if the optimizer's steps are sums of gradients."""
    text = (
        "With SGD the weights equal those of one process, but not with Adagrad, whose steps are "
        "not sums of gradients. Average the gradients before the step instead of the weights "
        "after it."
    )
    ranks = tuple(range(len(seen)))
    return Diagnosis("differs-from-single-process", ranks, text, guide=GUIDE)


def step_mistakes(inputs, targets, pick=dict):
    """Return the rules that recognise a mistake by the weights that `pick` selects."""
    world_size = inputs.shape[1]

    def ended(**options):
        return pick(one_process(inputs, targets, **options)["weights"])

    def rule(code, text, **options):
        return ends_with([ended(**options)] * world_size, code, text, GUIDE)

    alone = [ended(rank=rank) for rank in range(world_size)]
    return [
        ends_with(
            alone,
            "gradients-not-synchronised",
            "Each rank ends with the weights of a process that trained on its own samples only. "
            "Average the gradients between backward and step.",
            GUIDE,
        ),
        rule(
            "sum-not-mean",
            f"Each step was {world_size} times too large: the gradients were summed over the "
            f"{world_size} ranks instead of averaged, or the loss or learning rate was multiplied "
            f"by {world_size}. Divide the sum by the number of ranks.",
            scale=world_size,
        ),
        rule(
            "divided-twice",
            f"Each step was {world_size} times too small: the gradients were averaged, and then "
            "divided by the number of ranks again. Divide once.",
            scale=1 / world_size,
        ),
        rule(
            "does-not-learn",
            "The weights are the same as before: there was no step, or all gradients were zero.",
            scale=0,
        ),
        rule(
            "gradients-not-zeroed",
            "Each step also used the gradients of all earlier steps. Clear the gradients in each "
            "step.",
            zero=False,
        ),
        differs_from_one_process(
            GUIDE,
            f"{counted(world_size, 'rank')} with {inputs.shape[2]} samples"
            + " each" * (world_size > 1),
        ),
    ]


def mean_loss_returned(ranks, inputs, targets):
    """Check that every rank returns the same float: the mean of the losses before the step."""
    world_size = inputs.shape[1]

    def probe(rank, trainer, inputs, targets):
        [loss] = probe_steps(rank, trainer, inputs, targets)["losses"]
        return [
            isinstance(loss, float),
            type(loss).__name__,
            loss if isinstance(loss, float) else None,
        ]

    seen = ranks(probe, world_size, inputs=by_rank(inputs, 1), targets=by_rank(targets, 1))

    raise_mistake(nobody_waited(seen, GUIDE))
    wrong = [rank for rank in range(world_size) if not seen[rank][0]]
    check(
        not wrong,
        "wrong-signature",
        no_float("train_step", [seen[rank][1] for rank in wrong]),
        ranks=wrong,
        guide=GUIDE,
    )
    losses = each(seen, lambda value: value[2])
    own = [one_process(inputs, targets, rank=rank)["losses"][0] for rank in range(world_size)]
    assert_on_every_rank(
        losses,
        float(np.mean(own)),
        mistakes=[
            *loss_mistakes(own, loss_after(inputs, targets), GUIDE),
            rounded_loss("train_step", GUIDE),
        ],
        otherwise=f"the ranks return {list(losses)} from train_step. Each should return the mean "
        "of the ranks' losses before the step",
    )


def loss_after(inputs, targets):
    """Return the mean loss on the step's batches with the weights after the step."""
    model = Net(inputs[0][0])
    # Tied parameters have one name.
    model.load_state_dict(one_process(inputs, targets)["weights"], strict=False)
    samples, wanted = (torch.from_numpy(np.concatenate(part[0])) for part in (inputs, targets))
    return nn.functional.cross_entropy(model(samples), wanted).item()


def batch_moved(ranks, inputs, targets):
    """Check that the inputs (sample, 5) and the targets are moved to the device of the model."""

    def probe(rank, trainer, inputs, targets):
        return devices_met(trainer, torch.from_numpy(inputs), torch.from_numpy(targets))

    [seen] = ranks(probe, 1, inputs=inputs, targets=targets)

    raise_mistake(batch_not_moved(seen, GUIDE))


def former_gradients_cleared(ranks, inputs, targets):
    """Check that gradients that exist before a step of two ranks do not change it.

    The targets (step, rank, sample, 3) are probabilities. With NaN on rank 0 only, no rank blocks,
    and the ranks' weights stay equal.
    """

    def probe(rank, trainer, inputs, targets):
        model = placed(Net(inputs[0][rank]), rank)
        optimizer = optimizer_for(model)
        for param in model.parameters():
            if param.requires_grad:
                param.grad = torch.ones_like(param)
        batch = (torch.from_numpy(inputs[0][rank]), torch.from_numpy(targets[0][rank]))
        trainer.train_step(model, batch, nn.CrossEntropyLoss(), optimizer)
        return used(weights_of(model))

    data = {"inputs": by_rank(inputs, 1), "targets": by_rank(targets, 1)}
    seen = ranks(probe, 2, **data)

    raise_mistake(nobody_waited(seen, GUIDE))
    expected = used(one_process(inputs, targets)["weights"])
    stale = {n: p if n.startswith("frozen") else p - LEARNING_RATE for n, p in expected.items()}
    cleared = ends_with(
        [stale] * 2,  # the gradient is too large by 1
        "gradients-not-zeroed",
        "Gradients from before the step were added to the gradients of the step. Clear the "
        "gradients in each step, before backward.",
        GUIDE,
    )
    assert_on_every_rank(
        seen, expected, mistakes=[cleared, *step_mistakes(inputs, targets, pick=used)]
    )
    data["inputs"] = by_rank(np.where(np.arange(2)[:, None, None] == 0, np.nan, inputs), 1)
    apart = skipped_because_of_nan(0, "a loss", GUIDE)
    again = check_no_deadlock(lambda: ranks(probe, 2, mistakes=[apart], **data))
    check(
        again is None or alike(*again),
        "differs-from-single-process",
        "If only rank 0 has a loss that is NaN, the ranks have different weights after the step: "
        "one of them skips it, or changes its gradients, alone. Decide by values that are the same "
        "on every rank, such as the averaged gradients.",
        ranks=range(2),
        guide=GUIDE,
    )


def alike(weights, others):
    """Return whether the weights are equal, also where both are NaN."""
    return all(np.array_equal(weights[n], others[n], equal_nan=True) for n in weights)


def used(weights):
    """Leave out unused parameters, which may have no gradient or a zero gradient."""
    return {name: value for name, value in weights.items() if not name.startswith("unused")}
