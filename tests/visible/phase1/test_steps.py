"""The visible tests of the training step, for `gradsync check`, with small numbers."""

import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, each, exercise
from support.probes.returned import float_returned
from support.probes.steps import traced_step
from support.rules.losses import loss_mistakes
from support.rules.steps import averaged_too_late, without_its_gradient
from support.rules.wrong_results import ends_with

GUIDE = "The training step"
AFTER = (0.3**2 + 1.6**2) / 2  # the mean loss after the first step, with weight 0.7


def one_weight(value):
    """Return the model `output = weight * input`."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def first_step(rank, trainer):
    """Fit `weight * 1 = 1` on rank 0 and `weight * 2 = 3` on rank 1, starting at weight 0."""
    model = one_weight(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = ([[1.0]], [[1.0]]) if rank == 0 else ([[2.0]], [[3.0]])  # (sample, 1)
    batch = (torch.tensor(inputs), torch.tensor(targets))
    return traced_step(trainer.train_step, model, optimizer, batch)


@exercise("phase1/train_step", points=1)
def test_two_ranks_step_as_one_process_with_both_samples(ranks):
    """The gradients are -2 and -12, their mean is -7, and at rate 0.1 the weight becomes 0.7."""

    def probe(rank, trainer):
        return first_step(rank, trainer)

    seen = ranks(probe, world_size=2)

    calls, after = ([value[name] for value in seen] for name in ("calls", "after"))
    seen = each(seen, lambda value: value["weight"])
    assert_on_every_rank(
        seen,
        0.7,
        mistakes=[
            without_its_gradient(calls, GUIDE),
            averaged_too_late(calls, after, GUIDE),
            ends_with(
                [0.2, 1.2],
                "gradients-not-synchronised",
                "After a step, the weights are 0.2 and 1.2 by rank, but should be 0.7 on both. "
                "Each rank stepped with its own gradient, -2 and -12, instead of the mean, -7. "
                "Call average_gradients after `backward()` and before `optimizer.step()`.",
                GUIDE,
            ),
            ends_with(
                [1.4, 1.4],
                "sum-not-mean",
                "After a step, the weight is 1.4, but should be 0.7. The ranks stepped with the "
                "sum of their gradients, -14, instead of the mean, -7.",
                GUIDE,
            ),
            ends_with(
                [0.0, 0.0],
                "does-not-learn",
                "After a step, the weight is still 0, but should be 0.7. Step with the mean of the "
                "gradients, with the optimizer that is passed.",
                GUIDE,
            ),
        ],
        otherwise=f"after a step, the weights are {list(seen)} by rank, but should be 0.7 on both",
    )


@exercise("phase1/train_step", points=1)
def test_the_loss_is_the_mean_over_the_ranks(ranks):
    """The loss is 1 on rank 0 and 9 on rank 1: both ranks return 5."""

    def probe(rank, trainer):
        step = first_step(rank, trainer)
        return {**step, "loss": float_returned(step["loss"], "train_step")}

    seen = ranks(probe, world_size=2)

    line = seen[0]["line"]
    seen = each(seen, lambda value: value["loss"])
    assert_on_every_rank(
        seen,
        5.0,
        mistakes=loss_mistakes([1.0, 9.0], AFTER, GUIDE, line),
        otherwise=f"the ranks return {list(seen)} from train_step. Both should return 5, the mean "
        "of their losses 1 and 9",
    )


@exercise("phase1/train_step", points=1)
def test_the_gradient_of_a_step_is_cleared_for_the_next(ranks):
    """Two steps of a single rank change the weight from 0 to 0.2 and then to 0.36."""

    def probe(trainer):
        model = one_weight(0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = (torch.ones(1, 1), torch.ones(1, 1))
        return [traced_step(trainer.train_step, model, optimizer, batch) for _ in range(2)]

    seen = ranks(probe, world_size=1)

    calls = [[call for step in value for call in step["calls"]] for value in seen]
    seen = each(seen, lambda value: [step["weight"] for step in value])
    assert_on_every_rank(
        seen,
        [0.2, 0.36],  # the gradients are 2 * (0 - 1) = -2 and 2 * (0.2 - 1) = -1.6
        mistakes=[
            without_its_gradient(calls, GUIDE),
            ends_with(
                [[0.2, 0.56]],
                "gradients-not-zeroed",
                "Two steps change the weight from 0 to 0.2 and then to 0.56, but should lead to "
                "0.36. The gradient of the first step was added to the second one: clear it.",
                GUIDE,
            ),
        ],
        otherwise=f"two steps from weight 0 lead to {seen[0]}, but should lead to [0.2, 0.36]",
    )
