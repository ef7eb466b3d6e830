"""The rules on resumed training runs."""

import pytest
import torch

from gradsync.records import Diagnosis, Failure, Observation
from support.rules.resuming import beyond_epochs, file_misused, resumed_wrongly


def resumed(*epochs):
    return [{"history": [{"epoch": float(epoch)} for epoch in epochs]}] * 2


def test_an_epoch_too_many_is_recognised():
    diagnosis = beyond_epochs(resumed(1, 2, 3), 3)

    assert diagnosis.code == "samples-repeated"
    assert diagnosis.ranks == (0, 1)
    assert diagnosis.explanation.startswith("With epochs=3, a training run that was resumed")
    assert "trained up to epoch 3." in diagnosis.explanation


@pytest.mark.parametrize("epochs", [(), (0, 1, 2), (2,)])
def test_the_requested_epochs_are_not_too_many(epochs):
    assert beyond_epochs(resumed(*epochs), 3) is None


@pytest.mark.parametrize(
    ("exception", "detail", "code", "text"),
    [
        ("FileNotFoundError", "No such file or directory: 'p.pt'", "exception", "need not exist"),
        ("FileNotFoundError", "No such file: 'p.part' -> 'p.pt'", "exception", "Only rank 0"),
        ("AttributeError", "Can't pickle local object", "unsafe-load", "whole objects"),
    ],
)
def test_a_run_that_fails_because_of_its_file_is_explained(exception, detail, code, text):
    failure = Failure("error", Diagnosis("exception", (0,), detail), exception, detail)

    found = file_misused(Observation(1, (None,), (), ("",), 0.1, failure), None)

    assert found.code == code
    assert text in found.explanation


def test_another_exception_is_not_about_the_file():
    failure = Failure("error", Diagnosis("exception", (0,), "Oops."), "KeyError", "Oops.")

    assert file_misused(Observation(1, (None,), (), ("",), 0.1, failure), None) is None
    assert file_misused(Observation(1, (1,), (), ("",), 0.1), None) is None


def training(*weights):
    return [{"trained": list(range(len(weights))), "weights": torch.tensor(weights)}] * 2


@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([[], ["momentum_buffer"]], "keeps `momentum_buffer` for each parameter, but started"),
        ([[], []], "Save everything that a step depends on"),
        ([], "Save everything that a step depends on"),  # an optimizer that is not torch's
    ],
)
def test_a_lost_optimizer_state_is_recognised(states, text):
    whole = [{**one, "states": states} for one in training(0.0, 1.0, 2.0)]
    second = [{**one, "trained": [1, 2], "states": states[:1]} for one in training(1.0, 2.5)]

    found = resumed_wrongly(whole, second, 2)

    assert (found.code, text in found.explanation) == ("state-lost", True)


@pytest.mark.parametrize(
    ("first", "code", "text"),
    [
        (9.0, "resume-lost", "The resumed call did not continue from the file."),
        (2.0, "samples-repeated", "continued with the weights before the last 2 steps"),
    ],
)
def test_training_that_starts_again_differs_from_training_that_repeats_samples(first, code, text):
    found = resumed_wrongly(training(0.0, 1.0, 2.0, 3.0), training(first, 3.0, 4.0, 5.0), 2)

    assert (found.code, text in found.explanation) == (code, True)
