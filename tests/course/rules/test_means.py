"""Numbers of a history that are means over only some samples."""

import numpy as np
import pytest

from support.rules.means import other_means

VAL = np.array([1.0, 2.0, 4.0, 8.0, 3.0])
# The samples of rank 0, then of rank 1.
STEPS = [np.array([1.0, 2.0, 5.0, 9.0]), np.array([4.0, 7.0])]
RIGHT = {
    "val_loss": VAL.mean(),
    "train_loss": np.concatenate(STEPS).mean(),
    "samples": {"val_loss": VAL, "train_loss": STEPS},
}


def found(name, told):
    rows = [{**RIGHT, name: number} for number in told]
    seen = [{"history": [row]} for row in rows]
    return other_means(seen, [RIGHT], 2, guide="Resuming", evaluation="Evaluation")


def test_right_numbers_get_no_diagnosis():
    assert found("val_loss", [VAL.mean()] * 2) is None


@pytest.mark.parametrize(
    ("name", "told", "code"),
    [
        ("val_loss", [VAL[:3].mean(), VAL[3:].mean()], "loss-is-local"),
        ("val_loss", [VAL[::2].mean(), VAL[1::2].mean()], "loss-is-local"),
        ("val_loss", [VAL[:3].mean()] * 2, "loss-is-local"),
        ("val_loss", [(VAL[:3].mean() + VAL[3:].mean()) / 2] * 2, "mean-of-means"),
        ("val_loss", [(1.5 + 4.0 + 5.5) / 3] * 2, "mean-of-means"),
        ("val_loss", [np.append(VAL, VAL[0]).mean()] * 2, "samples-repeated"),
        ("train_loss", [np.mean([1.0, 2.0, 4.0]), np.mean([5.0, 9.0, 7.0])], "loss-is-local"),
    ],
)
def test_a_mean_over_other_samples_is_reported(name, told, code):
    assert found(name, told).code == code


def test_other_numbers_get_no_diagnosis():
    assert found("val_loss", [0.5, 0.5]) is None
