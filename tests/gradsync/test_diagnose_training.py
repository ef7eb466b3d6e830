"""What is wrong with a training, by its samples, weights, history and lines."""

import numpy as np
import pytest
import torch
from torch import nn

from gradsync.diagnose import first_diagnosis
from gradsync.diagnose.training import (
    models_differ,
    other_lines,
    other_numbers,
    other_rows,
    other_samples,
    training_mistakes,
)
from gradsync.probes.training import LEARNING_RATE, draw_samples, one_step, spied_training
from gradsync.records import Observation

GUIDE = "Training"
RNG = np.random.default_rng(7)
DATA = draw_samples(RNG, 8), draw_samples(RNG, 6)


def make_model(rank):
    torch.manual_seed(rank)
    return nn.Linear(4, 3).double()


def all_of(dataset):
    samples = [dataset[index] for index in range(len(dataset))]
    return [torch.stack(part) for part in zip(*samples, strict=True)]


def train(info, model, train_set, val_set, *, lr, epochs=1):
    """Train in one process: a step an epoch, on all samples in their order."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    inputs, targets = all_of(train_set)
    val_inputs, val_targets = all_of(val_set)
    history = []
    for epoch in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        outputs = model(val_inputs)
        val_loss = nn.functional.cross_entropy(outputs, val_targets)
        accuracy = (outputs.argmax(1) == val_targets).double().mean()
        numbers = {"train_loss": loss, "val_loss": val_loss, "val_accuracy": accuracy}
        history.append({"epoch": epoch, **{n: value.item() for n, value in numbers.items()}})
        print(f"epoch {epoch}")
    return history


def seen_of(**options):
    return [spied_training(train, None, make_model(0), DATA, **options) for _ in range(2)]


def test_a_training_as_in_one_process_is_right():
    once, thrice = seen_of(epochs=1), seen_of(epochs=3)

    step = one_step(make_model(0), *DATA)
    numbers = step.history, step.loss_before

    assert models_differ(once, GUIDE) is None
    assert other_rows(thrice, GUIDE) is None
    assert other_numbers(once, *numbers, guide=GUIDE, evaluation=GUIDE) is None
    assert step.weights["weight"].allclose(once[0]["weights"]["weight"])
    assert once[0]["drawn"] == list(range(8))


def test_numbers_from_before_the_training_are_told_as_such():
    once, step = seen_of(), one_step(make_model(0), *DATA)
    once[0]["history"][0]["val_loss"] = step.loss_before

    found = other_numbers(once, step.history, step.loss_before, guide=GUIDE, evaluation="Val")

    assert (found.code, found.guide) == ("differs-from-single-process", "Val")
    assert "that of the model before it" in found.explanation


def test_epochs_that_do_not_count_from_0_are_told():
    thrice = seen_of(epochs=3)
    thrice[1]["history"][0]["epoch"] = 1

    assert other_rows(thrice, GUIDE).code == "wrong-signature"


@pytest.mark.parametrize(("lines", "ranks"), [([["a"], ["a"]], (1,)), ([[], []], (0,))])
def test_who_prints_too_much_or_too_little_is_named(lines, ranks):
    seen = [{"lines": own} for own in lines]

    assert other_lines(seen, 1, GUIDE).ranks == ranks


@pytest.mark.parametrize(
    ("rank_0", "rank_1", "other", "code"),
    [
        ([0, 1, 0, 1], [0, 1, 0, 1], [2, 3], "same-shard-on-every-rank"),
        ([0, 1, 1, 0], [1, 2, 2, 1], [2, 3], "sampler-not-used"),
        ([0, 1, 0, 1], [2, 3, 2, 3], [2, 3], "epoch-not-set"),
        ([0, 1, 1, 2], [2, 3, 3, 0], [0, 1], "seed-ignored"),
    ],
)
def test_orders_of_samples_are_told_apart(rank_0, rank_1, other, code):
    seen = [{"drawn": rank_0}, {"drawn": rank_1}]
    reseeded = [{"drawn": other}, {"drawn": sorted({0, 1, 2, 3} - set(other))}]
    headings = {"shares": "Shares", "epochs": "Epochs", "guide": GUIDE}

    assert other_samples(seen, reseeded, samples=4, **headings).code == code


@pytest.mark.parametrize(
    ("rank", "scale", "code"),
    [
        (0, 2.0, "sum-not-mean"),
        (0, 0.0, "does-not-learn"),
        (1, 1.0, "wrong-source"),
        (0, 0.5, "differs-from-single-process"),
    ],
)
def test_weights_tell_the_mistake(rank, scale, code):
    def weights_after(rank, scale):
        return one_step(make_model(rank), *DATA, scale=scale).weights

    ended = weights_after(rank, scale)
    seen = Observation(2, (ended, ended), events=(), output=("", ""), seconds=0.0)
    headings = {"guide": GUIDE, "mean": "Mean", "start": "Start"}
    rules = training_mistakes(weights_after, case="2 ranks", world_size=2, **headings)

    assert first_diagnosis(seen, [weights_after(0, 1.0)] * 2, rules).code == code


def test_the_step_is_that_of_the_learning_rate_given_to_train():
    seen = {}
    spied_training(lambda *_, lr: seen.update(lr=lr) or [], None, make_model(0), DATA)

    assert seen == {"lr": LEARNING_RATE}
