"""Mistakes in a training run, recognised by its samples, weights, history and output."""

import numpy as np
import pytest
import torch
from torch import nn

from support.probes.training import LEARNING_RATE, Case, Classifier, draw_samples, spied_training
from support.rules.histories import kept_from_earlier_calls, other_rows
from support.rules.one_process import PHASE1, other_history, other_training
from support.rules.training import (
    batches_divided,
    models_differ,
    other_counts,
    trained_a_copy,
    trained_in_evaluation_mode,
)

GUIDE = "Training"
RNG = np.random.default_rng(7)
DATA = draw_samples(RNG, 8), draw_samples(RNG, 6)
ONE = Case(DATA, [0], epochs=3, batch_size=5)  # one rank, with batches of 5 and 3 samples


def all_of(dataset):
    samples = [dataset[index] for index in range(len(dataset))]
    return [torch.stack(part) for part in zip(*samples, strict=True)]


def train(info, model, train_set, val_set, *, lr, epochs=1, **settings):
    """Train in one process: steps of 5 samples and 3 in each epoch, in the samples' order."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, **settings)
    inputs, targets = all_of(train_set)
    val_inputs, val_targets = all_of(val_set)
    history = []
    for epoch in range(epochs):
        total = 0.0
        for batch in torch.arange(8).split(5):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs[batch]), targets[batch])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(batch)
        with torch.no_grad():
            outputs = model(val_inputs)
        val_loss = nn.functional.cross_entropy(outputs, val_targets).item()
        accuracy = (outputs.argmax(1) == val_targets).double().mean().item()
        numbers = {"train_loss": total / 8, "val_loss": val_loss, "val_accuracy": accuracy}
        history.append({"epoch": epoch, **numbers})
        print(f"epoch {epoch}")
    return history


def seen_of(ranks=1, **options):
    options = {"epochs": 3, **options}
    return [spied_training(train, None, Classifier(0), DATA, **options) for _ in range(ranks)]


def numbers_of(seen):
    """Return the diagnosis of the history of a run."""
    return other_history(seen, ONE, PHASE1)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.123},
        {"momentum": 0.9},
        {"momentum": 0.5, "nesterov": True},
        {"momentum": 0.99},
        {"momentum": 0.7, "dampening": 0.45},
    ],
    ids=str,
)
def test_any_sgd_is_right(settings):
    seen = seen_of(**settings)

    assert other_training(seen, ONE, PHASE1) is None
    assert other_rows(seen, GUIDE) is None
    assert numbers_of(seen) is None
    assert seen[0]["trained"] == 3 * list(range(8))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"weight_decay": 0.1}, "as weight decay does"),
        ({"momentum": 0.9, "weight_decay": 0.1}, "as weight decay does"),
        ({"lr": LEARNING_RATE / 500}, "0.002 times the step of one process"),
    ],
    ids=str,
)
def test_other_steps_are_reported(settings, text):
    def train_so(*args, **options):
        return train(*args, **{**options, **settings})

    seen = [spied_training(train_so, None, Classifier(0), DATA, epochs=3)]

    assert text in other_training(seen, ONE, PHASE1).explanation


def test_numbers_from_before_the_training_are_recognised():
    seen, loss = seen_of(), nn.CrossEntropyLoss()
    inputs, targets = map(torch.from_numpy, DATA[1])
    seen[0]["history"][0]["val_loss"] = loss(Classifier(0)(inputs), targets).item()

    found = numbers_of(seen)

    assert (found.code, found.guide) == ("differs-from-single-process", "Epochs and evaluation")
    assert "but it is the loss before the training" in found.explanation


def test_numbers_repeated_from_the_previous_epoch_are_recognised():
    seen = seen_of()
    rows = seen[0]["history"]
    rows[2]["train_loss"] = rows[1]["train_loss"]

    found = numbers_of(seen)

    assert (found.code, found.guide) == ("differs-from-single-process", GUIDE)
    assert "`train_loss` of epoch 2" in found.explanation
    assert found.explanation.endswith("but it is the value of epoch 1.")


@pytest.mark.parametrize(
    ("weights", "code", "what"),
    [
        ([1.0, 0.0], "differs-from-single-process", "the loss of the epoch's first step"),
        ([0.0, 1.0], "differs-from-single-process", "the loss of the epoch's last step"),
        ([0.5, 0.5], "mean-of-means", "the mean of the batches' mean losses"),
    ],
)
def test_a_loss_of_only_some_steps_is_recognised(weights, code, what):
    seen = seen_of()
    inputs, targets = map(torch.from_numpy, DATA[0])
    losses = []
    for indices, before in seen[0]["steps"][:2]:
        model = Classifier(0)
        model.load_state_dict(before)
        losses.append(nn.functional.cross_entropy(model(inputs[indices]), targets[indices]).item())
    seen[0]["history"][0]["train_loss"] = float(np.dot(weights, losses))

    found = numbers_of(seen)

    assert found.code == code
    assert f", but it is {what}." in found.explanation


def test_a_rank_that_trains_on_too_many_samples_is_named():
    seen = [{"trained": [0, 1]}, {"trained": [2, 3, 2, 3]}]

    assert other_counts(seen, 2, GUIDE).ranks == (1,)
    assert other_counts(seen[:1], 2, GUIDE) is None


@pytest.mark.parametrize(
    ("sizes", "ranks"),
    [
        pytest.param([[2, 2], [2, 2]], None, id="in training mode"),
        pytest.param([[2, 2], [2, 2, 3]], None, id="evaluated in training mode, too"),
        pytest.param([[2, 2], []], (1,), id="not on one rank"),
        pytest.param([[2], [2]], (0, 1), id="for one of two batches"),
    ],
)
def test_training_in_evaluation_mode_is_reported(sizes, ranks):
    seen = [{"sizes": own, "trained": [0, 1, 2, 3]} for own in sizes]

    found = trained_in_evaluation_mode(seen, GUIDE)

    assert (found and (found.code, found.ranks)) == (ranks and ("mode-not-restored", ranks))


@pytest.mark.parametrize(
    ("sizes", "asked", "code"),
    [
        ([[2, 2, 1], [2, 2, 1]], 4, "batch-size-divided"),
        ([[1, 1], [1, 1]], 1, None),
        ([[4, 1], [4, 1]], 4, None),
        ([[2, 2], [4, 1]], 4, None),
        ([[], []], 4, None),
    ],
)
def test_a_divided_batch_size_is_reported(sizes, asked, code):
    found = batches_divided([{"sizes": own} for own in sizes], asked, GUIDE)

    assert (found and found.code) == code


def test_a_wrong_step_after_the_first_is_reported():
    def train_later_with_decay(*args, **options):
        history = train(*args, **{**options, "epochs": 1})
        return [*history, *train(*args, **{**options, "epochs": 2, "weight_decay": 0.1})]

    seen = [spied_training(train_later_with_decay, None, Classifier(0), DATA, epochs=3)]

    found = other_training(seen, ONE, PHASE1)

    assert found.code == "differs-from-single-process"
    assert found.explanation.startswith("Until step 2, training equals that of one process")


def test_ranks_that_differ_only_in_their_buffers_are_reported():
    seen = seen_of(2)
    seen[1]["weights"]["shift"] += 1.0

    found = models_differ(seen, GUIDE)

    assert found.code == "buffers-not-broadcast"
    assert "their buffer `shift` differs" in found.explanation


def test_epochs_that_do_not_count_from_0_are_reported():
    thrice = seen_of(2)
    thrice[1]["history"][0]["epoch"] = 1

    assert other_rows(thrice, GUIDE).code == "wrong-signature"


def test_train_gets_the_learning_rate():
    seen = {}
    spied_training(lambda *_, lr: seen.update(lr=lr) or [], None, Classifier(0), DATA)

    assert seen == {"lr": LEARNING_RATE}


def test_a_missing_history_is_reported():
    thrice = seen_of(2)
    thrice[1]["history"] = []

    found = other_rows(thrice, GUIDE)

    assert (found.code, found.ranks) == ("only-one-rank-has-it", (1,))
    thrice[0]["history"] = []
    assert "With epochs=3, train returns no entries" in other_rows(thrice, GUIDE).explanation


def test_a_history_with_entries_of_an_earlier_call_is_reported():
    first, second = [{"history": [{}] * 2}], [{"history": [{}] * 3}]

    assert kept_from_earlier_calls([first, second], GUIDE).code == "wrong-signature"
    assert kept_from_earlier_calls([first, [{"history": [{}]}]], GUIDE) is None
    assert kept_from_earlier_calls([first, first], GUIDE) is None


def test_more_keys_in_an_entry_are_right():
    def train_and_tell_more(*args, **options):
        return [{**row, "name": "x"} for row in train(*args, **options)]

    seen = [spied_training(train_and_tell_more, None, Classifier(0), DATA, epochs=3)]

    assert other_rows(seen, GUIDE) is None


def test_a_missing_key_of_an_entry_is_reported():
    thrice = seen_of(2)
    del thrice[0]["history"][1]["val_loss"]

    found = other_rows(thrice, GUIDE)

    assert found.code == "wrong-signature"
    assert "entries with the keys epoch, train_loss, val_accuracy" in found.explanation


def test_training_a_copy_is_reported():
    before = dict(Classifier(0).state_dict())
    seen = [{"weights": before, "trained": [0, 1]}] * 2

    assert trained_a_copy(seen, [before] * 2, GUIDE).code == "does-not-learn"
    assert trained_a_copy([{"weights": before, "trained": []}] * 2, [before] * 2, GUIDE) is None
    assert trained_a_copy(seen_of(2), [before] * 2, GUIDE) is None
