"""Numbers of a history or an evaluation that are means over only some samples."""

import numpy as np
import pytest

from gradsync.records import Observation
from support.rules.means import left_the_loop, mean_of_ranks, other_means

VAL = np.array([1.0, 2.0, 4.0, 8.0, 3.0])
# The samples of rank 0, then of rank 1.
STEPS = [np.array([1.0, 2.0, 5.0, 9.0]), np.array([4.0, 7.0])]
RIGHT = {
    "val_loss": VAL.mean(),
    "train_loss": np.concatenate(STEPS).mean(),
    "samples": {"val_loss": VAL, "train_loss": STEPS},
}


def found(name, returned):
    rows = [{**RIGHT, name: number} for number in returned]
    seen = [{"history": [row]} for row in rows]
    return other_means(seen, [RIGHT], 2, guide="Resuming", evaluation="Evaluation")


def test_right_numbers_get_no_diagnosis():
    assert found("val_loss", [VAL.mean()] * 2) is None


@pytest.mark.parametrize(
    ("name", "returned", "code"),
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
def test_a_mean_over_other_samples_is_reported(name, returned, code):
    assert found(name, returned).code == code


def test_other_numbers_get_no_diagnosis():
    assert found("val_loss", [0.5, 0.5]) is None


SHARES = [
    {"loss": 1.0, "accuracy": 1.0, "samples": 3},
    {"loss": 5.0, "accuracy": 0.0, "samples": 1},
]
ALL = {"loss": 2.0, "accuracy": 0.75, "samples": 4}


def evaluated(rule, *results):
    return rule(Observation(2, results, (), ("", ""), 0.1), [ALL] * 2)


@pytest.mark.parametrize("samples", [(4, 4), (3, 1)])
def test_a_mean_of_the_ranks_means_is_reported_with_any_number_of_samples(samples):
    results = [{"loss": 3.0, "accuracy": 0.5, "samples": count} for count in samples]

    found = evaluated(mean_of_ranks(SHARES, "Evaluation"), *results)

    assert found.code == "mean-of-means"
    assert "The ranks have 3 and 1 samples" in found.explanation


def test_other_numbers_are_not_a_mean_of_the_ranks_means():
    rule = mean_of_ranks(SHARES, "Evaluation")

    assert evaluated(rule, *SHARES) is None
    assert evaluated(mean_of_ranks([SHARES[0], {}], "Evaluation"), SHARES[0], SHARES[0]) is None
    assert evaluated(mean_of_ranks([ALL, ALL], "Evaluation"), *[{**ALL, "samples": 2}] * 2) is None


def test_samples_that_all_ranks_leave_out_are_reported_with_the_returning_line():
    few = {"loss": 7 / 3, "accuracy": 2 / 3, "samples": 3}
    rule = left_the_loop(4, "Evaluation", "trainer.py:9")

    found = evaluated(rule, few, few)

    assert (found.code, found.where) == ("samples-dropped", "trainer.py:9")
    assert evaluated(rule, few, SHARES[1]) is None  # the ranks count their own samples
    assert evaluated(rule, *[{**ALL, "samples": 3}] * 2) is None  # only the count is wrong
