"""From gradients of which some are what was there before, or were changed on their way."""

import numpy as np
import pytest

from gradsync.diagnose.departures import left_too_early, overwritten
from gradsync.records import Observation

EARLIER = [{"weight": np.array([1.0, 2.0]), "bias": np.array([r + 3.0])} for r in range(2)]
MEAN = {"weight": np.array([5.0, 6.0]), "bias": np.array([7.0])}


def observed(biases):
    values = [{**MEAN, "bias": np.array([bias])} for bias in biases]
    return Observation(2, tuple(values), (), ("", ""), 0.1)


@pytest.mark.parametrize(
    ("biases", "said"),
    [
        ((0.0, 0.0), "bias: zero"),
        ((3.5, 3.5), "bias: the mean of what was in `grad`"),
        ((3.0, 4.0), "bias: what was in `grad`"),
    ],
)
def test_a_gradient_as_it_was_before_left_too_early(biases, said):
    diagnosis = left_too_early(EARLIER, "accumulation-lost")(observed(biases), [MEAN] * 2)

    assert diagnosis.code == "accumulation-lost"
    assert diagnosis.explanation.startswith(said)
    assert "The hook must see the final gradient" in diagnosis.explanation


@pytest.mark.parametrize("biases", [(7.0, 7.0), (0.0, 7.0), (14.0, 14.0), (4.0, 3.0)])
def test_another_gradient_did_not_leave_too_early(biases):
    rule = left_too_early(EARLIER, "accumulation-lost")

    assert rule(observed(biases), [MEAN] * 2) is None


def test_where_all_gradients_are_as_before_it_may_be_another_mistake():
    seen = Observation(2, tuple(EARLIER), (), ("", ""), 0.1)

    assert left_too_early(EARLIER, "accumulation-lost")(seen, [MEAN] * 2) is None


@pytest.mark.parametrize(("biases", "known"), [((9.0, 8.0), True), ((3.0, 4.0), False)])
def test_a_second_backward_changed_what_is_neither_right_nor_the_ranks_own(biases, known):
    diagnosis = overwritten(EARLIER)(observed(biases), [MEAN] * 2)

    assert (diagnosis is not None) == known
    if known:
        assert diagnosis.code == "only-some-parameters"
        assert "Overwriting what is on its way" in diagnosis.explanation
