"""The visible tests of the training step, for `gradsync check`, with small numbers."""

import numpy as np
import torch
from torch import nn

from gradsync.testing import assert_on_every_rank, each, exercise
from support.probes.returned import float_returned
from support.probes.steps import traced_step
from support.promises import steps
from support.rules.losses import loss_mistakes
from support.rules.steps import averaged_too_late, without_its_gradient
from support.rules.wrong_results import differs_from_one_process, ends_with

GUIDE = "The training step"
AFTER = (1.7**2 + 1.2**2) / 2  # the mean loss after the first step, with weight 0.9


def one_weight(value):
    """Return the model `output = weight * input`."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def first_step(rank, trainer):
    """Fit `weight * 3 = 1` on rank 0 and `weight * 2 = 3` on rank 1, starting at weight 0."""
    model = one_weight(0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = ([[3.0]], [[1.0]]) if rank == 0 else ([[2.0]], [[3.0]])  # (sample, 1)
    batch = (torch.tensor(inputs), torch.tensor(targets))
    return traced_step(trainer.train_step, model, optimizer, batch)


@exercise("phase1/train_step", points=1)
def test_two_ranks_step_as_one_process_with_both_samples(ranks):
    """The gradients are -6 and -12, their mean is -9, and at rate 0.1 the weight becomes 0.9."""

    def probe(rank, trainer):
        return first_step(rank, trainer)

    seen = ranks(probe, world_size=2)

    calls, after = ([value[name] for value in seen] for name in ("calls", "after"))
    seen = each(seen, lambda value: value["weight"])
    assert_on_every_rank(
        seen,
        0.9,
        mistakes=[
            without_its_gradient(calls, GUIDE),
            averaged_too_late(calls, after, GUIDE),
            ends_with(
                [0.6, 1.2],
                "gradients-not-synchronised",
                "After a step, the weights are 0.6 and 1.2 by rank, but should be 0.9 on both. "
                "Each rank stepped with its own gradient, -6 and -12, instead of the mean, -9. "
                "Call average_gradients after `backward()` and before `optimizer.step()`.",
                GUIDE,
            ),
            ends_with(
                [1.8, 1.8],
                "sum-not-mean",
                "After a step, the weight is 1.8, but should be 0.9. The ranks stepped with the "
                "sum of their gradients, -18, instead of the mean, -9.",
                GUIDE,
            ),
            ends_with(
                [0.0, 0.0],
                "does-not-learn",
                "After a step, the weight is still 0, but should be 0.9. Step with the mean of the "
                "gradients of the loss function, with the optimizer; both are passed.",
                GUIDE,
            ),
            ends_with(
                [0.45, 0.45],
                "divided-twice",
                "After a step, the weight is 0.45, but should be 0.9. The ranks stepped with half "
                "of the mean of their gradients, -9: divide by the number of ranks once.",
                GUIDE,
            ),
            differs_from_one_process(GUIDE, "2 ranks with a sample each"),
        ],
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
        mistakes=[
            ends_with(
                [6.5, 6.5],
                "differs-from-single-process",
                "The ranks return 6.5, the loss with inputs and targets exchanged: the targets are "
                "passed to the model. A batch is `(inputs, targets)`, in this order.",
                GUIDE,
                line=line,
            ),
            *loss_mistakes([1.0, 9.0], AFTER, GUIDE, line),
        ],
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
            differs_from_one_process(GUIDE, "two steps of a single rank, from 0 to 0.2 and 0.36"),
        ],
    )


# Two steps of 2 ranks with 2 samples each: the number of a sample's class is also its only input.
CLASSES = np.array([[[0, 1], [2, 0]], [[1, 1], [0, 2]]])  # (step, rank, sample)
INPUTS = np.eye(5)[CLASSES]  # (step, rank, sample, 5)


@exercise("phase1/train_step", points=1)
def test_two_steps_equal_those_of_one_process(ranks):
    """2 ranks with 2 samples each end with the weights of one process with all 4.

    The model has shared, frozen and unused weights, and the optimizers are SGD and Adagrad.
    """
    steps.steps_of_one_process(ranks, INPUTS, CLASSES)


@exercise("phase1/train_step", points=1)
def test_the_loss_is_exact(ranks):
    """The cross-entropy of 2 ranks with 2 samples each is returned as it is, not rounded."""
    steps.mean_loss_returned(ranks, INPUTS[:1], CLASSES[:1])


@exercise("phase1/train_step", points=1)
def test_a_single_rank_steps_in_float32(ranks):
    """On a single rank, a step is a plain step of the float32 model."""
    steps.steps_of_one_process(ranks, INPUTS[:, :1].astype(np.float32), CLASSES[:, :1])


@exercise("phase1/train_step", points=1)
def test_all_ranks_average_in_the_same_order(ranks):
    """The order is the model's: it depends on no hash, and names may differ between ranks."""
    steps.steps_in_one_order(ranks, 2, seed=1)


@exercise("phase1/train_step", points=1)
def test_the_batch_is_moved_to_the_model(ranks):
    """The inputs and the targets are moved to the device of the model."""
    steps.batch_moved(ranks, INPUTS[0, 0], CLASSES[0, 0])


@exercise("phase1/train_step", points=1)
def test_gradients_from_before_the_step_are_cleared(ranks):
    """Gradients of ones from before the step do not change it, and no rank skips a NaN alone."""
    steps.former_gradients_cleared(ranks, INPUTS[:1], np.eye(3)[CLASSES[:1]])
