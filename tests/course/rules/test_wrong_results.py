"""Mistakes that are recognised by the final values of the ranks."""

import numpy as np

from gradsync.records import Observation
from support.rules.wrong_results import differs_from_one_process, ends_with


def observed(*values):
    return Observation(len(values), values, (), ("",) * len(values), 0.1)


def test_a_mistake_is_recognised_by_its_values():
    rule = ends_with([2.0, 4.0], "loss-is-local", "each rank has its own loss", "Training")

    assert rule(observed(2.0, 4.0), [3.0, 3.0]).code == "loss-is-local"
    assert rule(observed(2.0, 3.0), [3.0, 3.0]) is None
    assert rule(observed(2.0, 4.0), None) is None


def test_an_unknown_mistake_is_reported_without_the_right_value():
    diagnosis = differs_from_one_process("Training", "2 ranks")(observed(1.0, 1.0), [3.0, 3.0])

    assert diagnosis.code == "differs-from-single-process"
    assert "3" not in diagnosis.explanation


def test_the_size_of_a_difference_is_reported():
    weights = [{"fc.weight": np.array([1.0, 4.0])}] * 2
    seen = observed(*[{"fc.weight": np.array([1.0, 2.0])}] * 2)

    diagnosis = differs_from_one_process("Training", "2 ranks")(seen, weights)

    assert "On rank 0, `fc.weight` differs by up to 50 %" in diagnosis.explanation
