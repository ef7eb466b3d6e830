"""From what a training that went on did to the mistake it shows."""

import pytest
import torch

from gradsync.diagnose.resuming import beyond_epochs, resumed_wrongly


def went_on(*epochs):
    return [{"history": [{"epoch": float(epoch)} for epoch in epochs]}] * 2


def test_an_epoch_beyond_those_asked_for_is_told():
    diagnosis = beyond_epochs(went_on(1, 2, 3), 3)

    assert diagnosis.code == "samples-repeated"
    assert diagnosis.ranks == (0, 1)
    assert "called for 3 epochs, 0 to 2," in diagnosis.explanation
    assert "ended epoch 3 as well" in diagnosis.explanation


@pytest.mark.parametrize("epochs", [(), (0, 1, 2), (2,)])
def test_epochs_asked_for_are_not_too_many(epochs):
    assert beyond_epochs(went_on(*epochs), 3) is None


def training(*weights):
    return [{"trained": list(range(len(weights))), "weights": torch.tensor(weights)}] * 2


@pytest.mark.parametrize(
    ("first", "code", "text"),
    [
        (9.0, "resume-lost", "it did not go on from the file"),
        (2.0, "samples-repeated", "it went on with the weights before the last 2 steps alone"),
    ],
)
def test_too_many_steps_are_those_of_an_epoch_too_many_or_of_a_start_anew(first, code, text):
    found = resumed_wrongly(training(0.0, 1.0, 2.0, 3.0), training(first, 3.0, 4.0, 5.0), 2)

    assert (found.code, text in found.explanation) == (code, True)
