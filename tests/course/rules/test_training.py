"""Mistakes in a training run, recognised by its samples, weights, history and output."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from gradsync.records import Observation
from gradsync.testing.rules import first_diagnosis
from gradsync.testing.values import close
from support.probes.training import (
    LEARNING_RATE,
    Classifier,
    draw_samples,
    one_process,
    spied_training,
    steps_of,
)
from support.rules.histories import kept_from_earlier_calls, other_numbers, other_rows
from support.rules.training import (
    batches_divided,
    later_steps_differ,
    models_differ,
    other_counts,
    trained_a_copy,
    trained_in_evaluation_mode,
    training_mistakes,
    with_its_momentum,
)

GUIDE = "Training"
RNG = np.random.default_rng(7)
DATA = draw_samples(RNG, 8), draw_samples(RNG, 6)
WHOLE = [range(8)]  # one step in the epoch


def all_of(dataset):
    samples = [dataset[index] for index in range(len(dataset))]
    return [torch.stack(part) for part in zip(*samples, strict=True)]


def train(info, model, train_set, val_set, *, lr, epochs=1, momentum=0.0):
    """Train in one process: one step in each epoch, on all samples in order."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
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
    return [spied_training(train, None, Classifier(0), DATA, **options) for _ in range(2)]


def numbers_of(seen):
    """Return the diagnosis of the numbers of these epochs."""
    right = one_process(DATA, [WHOLE] * len(seen[0]["history"]), 0)
    headings = {"guide": GUIDE, "evaluation": "Val"}
    return other_numbers(seen, *right[1:], **headings)


def test_training_as_in_one_process_is_correct():
    thrice = seen_of(epochs=3)

    right = one_process(DATA, [WHOLE] * 3, 0)

    assert models_differ(thrice, GUIDE) is None
    assert other_rows(thrice, GUIDE) is None
    assert numbers_of(thrice) is None
    assert later_steps_differ(thrice, right.weights, right.history, GUIDE) is None
    assert close(thrice[0]["weights"], right.weights)
    assert thrice[0]["trained"] == 3 * list(range(8))


def test_numbers_from_before_the_training_are_recognised():
    once = seen_of()
    once[0]["history"][0]["val_loss"] = one_process(DATA, [], 0).loss_before

    found = numbers_of(once)

    assert (found.code, found.guide) == ("differs-from-single-process", "Val")
    assert "but it is the loss before the training" in found.explanation


def test_numbers_repeated_from_the_previous_epoch_are_recognised():
    thrice = seen_of(epochs=3)
    for value in thrice:
        value["history"][2]["train_loss"] = value["history"][1]["train_loss"]

    found = numbers_of(thrice)

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
    right = one_process(DATA, [[[0, 1, 2, 3, 4], [5, 6, 7]]], 0)
    loss = float(np.dot(weights, right.losses[0]))
    seen = [{"history": [{**right.history[0], "train_loss": loss}]}]

    found = other_numbers(seen, *right[1:], guide=GUIDE, evaluation="Val")

    assert found.code == code
    assert f", but it is {what}." in found.explanation


def test_the_steps_of_all_ranks_are_grouped_by_epoch():
    trained = [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]

    steps = steps_of(trained, share=3, batch_size=2)

    assert steps == [[[0, 1, 6, 7], [2, 8]], [[3, 4, 9, 10], [5, 11]]]


def test_a_rank_that_trains_on_too_many_samples_is_named():
    seen = [{"trained": [0, 1]}, {"trained": [2, 3, 2, 3]}]

    assert other_counts(seen, 2, GUIDE).ranks == (1,)
    assert other_counts(seen[:1], 2, GUIDE) is None


def test_a_rank_whose_numbers_differ_is_named():
    once = seen_of()
    once[1]["history"][0]["val_loss"] += 0.1

    assert numbers_of(once).ranks == (1,)


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


def test_a_wrong_step_after_the_first_epoch_is_reported():
    right = one_process(DATA, [WHOLE] * 3, 0)

    found = later_steps_differ(seen_of(epochs=3, momentum=0.9), right.weights, right.history, GUIDE)

    assert found.code == "differs-from-single-process"
    assert "After epoch 0 the model equals the model of one process" in found.explanation


def test_a_wrong_first_step_is_left_to_other_rules():
    right = one_process(DATA, [WHOLE] * 3, 0)
    elsewhere = [spied_training(train, None, Classifier(1), DATA, epochs=3)]

    assert later_steps_differ(elsewhere, right.weights, right.history, GUIDE) is None


def test_ranks_that_differ_only_in_their_buffers_are_reported():
    seen = seen_of()
    seen[1]["weights"]["shift"] += 1.0

    found = models_differ(seen, GUIDE)

    assert found.code == "buffers-not-broadcast"
    assert "their buffer `shift` differs" in found.explanation


def test_epochs_that_do_not_count_from_0_are_reported():
    thrice = seen_of(epochs=3)
    thrice[1]["history"][0]["epoch"] = 1

    assert other_rows(thrice, GUIDE).code == "wrong-signature"


@pytest.mark.parametrize(
    ("rank", "scale", "code"),
    [
        (0, 2.0, "sum-not-mean"),
        (0, 0.0, "does-not-learn"),
        (1, 1.0, "wrong-source"),
        (0, 0.5, "differs-from-single-process"),
    ],
)
def test_each_mistake_in_the_weights_has_its_code(rank, scale, code):
    def weights_after(rank, scale):
        return one_process(DATA, [WHOLE], rank, lr=scale * LEARNING_RATE).weights

    ended = weights_after(rank, scale)
    seen = Observation(2, (ended, ended), events=(), output=("", ""), seconds=0.0)
    headings = {"guide": GUIDE, "mean": "Mean", "start": "Start"}
    rules = training_mistakes(weights_after, case="2 ranks", world_size=2, **headings)

    assert first_diagnosis(seen, [weights_after(0, 1.0)] * 2, rules).code == code


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9}, {"momentum": 0.5, "nesterov": True}, {"momentum": 0.99}],
    ids=str,
)
def test_a_constant_momentum_is_accepted(settings):
    train = partial(one_process, DATA, [WHOLE] * 3, 0)
    ended = train(**settings)

    right = with_its_momentum([{"weights": ended.weights}], train)

    assert close(right.weights, ended.weights)
    assert right.history == ended.history


@pytest.mark.parametrize(
    "settings",
    [{"weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1}, {"lr": 0.1}],
    ids=str,
)
def test_other_weights_are_compared_with_plain_sgd(settings):
    train = partial(one_process, DATA, [WHOLE] * 3, 0)

    right = with_its_momentum([{"weights": train(**settings).weights}], train)

    assert close(right.weights, train().weights)


def test_train_gets_the_learning_rate():
    seen = {}
    spied_training(lambda *_, lr: seen.update(lr=lr) or [], None, Classifier(0), DATA)

    assert seen == {"lr": LEARNING_RATE}


def test_a_missing_history_is_reported():
    thrice = seen_of(epochs=3)
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
    thrice = seen_of(epochs=3)
    del thrice[0]["history"][1]["val_loss"]

    found = other_rows(thrice, GUIDE)

    assert found.code == "wrong-signature"
    assert "entries with the keys epoch, train_loss, val_accuracy" in found.explanation


def test_training_a_copy_is_reported():
    before = dict(Classifier(0).state_dict())
    seen = [{"weights": before, "trained": [0, 1]}] * 2

    assert trained_a_copy(seen, [before] * 2, GUIDE).code == "does-not-learn"
    assert trained_a_copy([{"weights": before, "trained": []}] * 2, [before] * 2, GUIDE) is None
    assert trained_a_copy(seen_of(), [before] * 2, GUIDE) is None
