"""From what a training that went on did to the mistake it shows."""

import pytest

from gradsync.diagnose.resuming import beyond_epochs


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
